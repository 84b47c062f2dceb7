"""ClusterGateway: takes connections of clients, knows the cluster's directory, and chooses nodes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from opbox_protocol.errors import MXNetError, NotReadyError
from opbox_protocol.routes import LIVE

from ...accounting.accounts import Accounts
from ...api.caller import Identity
from ...api.connections import Connections
from ...api.identity import Tokens
from ...api.tls import Certificate
from ...api.tls_listener import TlsListener
from ...models.model_store import public_name
from ...session_ids import node_of
from ...settings import Settings
from ..controller import Outcome
from ..documents import Directory, GoneSession, SessionWish
from .answers import WholeAnswer
from .client_connection import ClientConnection
from .controllers import Controllers
from .exchange import GatewayExchange
from .figures import ClusterFigures
from .heads import RequestHead
from .node_connections import NodePool
from .placing import open_session
from .relay import Relays
from .routing import GatewayRoute, route_of

__all__ = ["ClusterGateway"]

DIRECTORY_S = 0.25
"""Seconds between two looks at the directory."""
FINISH_S = 0.05
"""Seconds between two looks at requests in flight when the gateway stops."""
MAX_KEPT_BYTES = 256 << 20
"""Maximum bytes of all bodies that are kept to make requests again; beyond, further ones are not kept."""
KNOWN_CALLERS = 10_000
_log = structlog.get_logger("opbox.gateway")


class ClusterGateway:
    """The gateway of a cluster.

    Args:
        controllers: the cluster's controller.
        settings: those of a server, as far as they are about connections, the certificate and tokens.

    Raises:
        BadRequestError: the certificate does not do; one sentence.

    Attributes:
        certificate: for TLS; None for plain HTTP.
        directory: of the nodes and models, as known now.
        connections, clients: of clients.
        now: seconds of time.monotonic, of the last second.
        stopping: whether connections end with the answer that is in flight on them.
        kept_bytes: of bodies that are kept to make requests again.
        relays: of large bodies.

    Example:
        >>> gateway = ClusterGateway(LocalControllers(controller), Settings(port=8000))
        >>> asyncio.run(gateway.serve(sock))
    """

    max_kept_bytes = MAX_KEPT_BYTES

    def __init__(self, controllers: Controllers, settings: Settings) -> None:
        self._controllers, self.settings = controllers, settings
        self._tokens = Tokens(settings, Accounts(settings))
        self.certificate = Certificate.of(settings)
        self.directory = Directory(-1, {}, {})
        self.connections = Connections(settings)
        self.clients: set[ClientConnection] = set()
        self.now = time.monotonic()
        self.kept_bytes, self.stopping = 0, False
        self._pools: dict[str, NodePool] = {}
        self._orders: dict[bytes, tuple[str, ...]] = {}
        self.relays = Relays()
        self._turn = itertools.count()
        self._figures = ClusterFigures(controllers)
        self._reached = True

    async def serve(self, sock: socket.socket, ready: asyncio.Event | None = None) -> None:
        """Serve until this is cancelled; then let requests in flight finish, for `stop_grace_s` of the settings.

        A second cancellation ends that at once. Streams of events, which have no end, are not waited for.

        Args:
            sock: bound.
            ready: set once the directory is known and connections are taken.
        """
        loop = asyncio.get_running_loop()
        await self.refresh()
        await self._tokens.start()
        make: Callable[[], ClientConnection] = lambda: ClientConnection(self)  # noqa: E731  # typed
        listener: TlsListener | asyncio.Server
        if self.certificate is None:
            listener = await loop.create_server(make, sock=sock, backlog=1024)
        else:
            listener = TlsListener(
                make, sock=sock, ssl=self.certificate.context, connections=self.connections, backlog=1024
            )
        if ready is not None:
            ready.set()
        sweep_at = 0.0
        try:
            while True:
                await asyncio.sleep(DIRECTORY_S)
                await self.refresh()
                self.now = now = time.monotonic()
                if now >= sweep_at:
                    sweep_at = now + 1
                    self._sweep(now)
        finally:
            listener.close()
            await self._finish()
            await self._tokens.stop()
            for client in list(self.clients):
                client.transport.abort()
            if isinstance(listener, TlsListener):
                await listener.wait_closed()
            for pool in self._pools.values():
                pool.break_all()
            self.relays.close()

    async def _finish(self) -> None:
        """Let requests in flight finish, and take no more."""
        until = time.monotonic() + self.settings.stop_grace_s
        self.stopping = True
        with contextlib.suppress(asyncio.CancelledError):
            while time.monotonic() < until:
                busy = [client for client in list(self.clients) if client.finishes()]
                if not busy:
                    return
                await asyncio.sleep(FINISH_S)

    def _sweep(self, now: float) -> None:
        if self.certificate is not None:
            self.certificate.refresh()
        for client in list(self.clients):
            client.sweep(now)
        for pool in list(self._pools.values()):
            pool.sweep(now)

    # -- what the controller knows --------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Look at the directory; the one of before stays while the controller is not reached."""
        try:
            directory = await self._controllers.directory(self.directory.version)
        except (OSError, MXNetError) as error:
            if self._reached:
                _log.warning("the controller is not reached: nodes and models as known before", error=str(error))
            self._reached = False
            return
        self._reached = True
        if directory.version == self.directory.version:
            return
        self.directory = directory
        self._orders.clear()
        urls = {node.url for node in directory.nodes.values() if node.state != "lost"}
        for url in [url for url in self._pools if url not in urls]:
            self._pools.pop(url).break_all()

    async def place(self, wish: SessionWish) -> Outcome:
        """A place for a session."""
        try:
            return await self._controllers.place(wish)
        except OSError:
            raise _no_controller() from None

    async def move(self, session: str, new: str, owner: str) -> None:
        """Tell the controller that a lost session of an owner's goes on as another; its node ends it, if it is back."""
        try:
            await self._controllers.move(session, new, owner)
        except (OSError, MXNetError) as error:  # the checkpoint's generation keeps the old one from saving
            _log.warning("the controller does not know that a session goes on", error=str(error))

    async def where(self, session: str) -> str | GoneSession:
        """The URL of the node that has a session, or why none has."""
        try:
            return await self._controllers.where(session)
        except OSError:
            raise _no_controller() from None

    def node_of(self, session: str) -> str | None:
        """The node that has a session, by its id; None where the controller has to be asked."""
        name = node_of(session)
        if name is None or session in self.directory.moved:
            return None
        node = self.directory.nodes.get(name)
        return None if node is None or node.state in ("drained", "lost") else name

    def is_listed(self, model: str) -> bool:
        """Whether the directory has a model."""
        return model in self.directory.models

    async def own_model(self, name: str, head: RequestHead, client: bytes) -> str:
        """The full name of a model that the caller has published; the name as it is where there is none."""
        with contextlib.suppress(MXNetError):  # the node refuses whoever is not known
            caller = await self.identify(head, client)
            full = public_name(caller.owner, name)
            return full if self.is_listed(full) else name
        return name

    # -- choosing -------------------------------------------------------------------------------------------------

    def pool(self, url: str) -> NodePool:
        """The connections to the node at a URL."""
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = NodePool(url)
        return pool

    def pool_of(self, name: str) -> NodePool:
        """The connections to a node."""
        return self.pool(self.directory.nodes[name].url)

    def choose(self, route: GatewayRoute, head: RequestHead, tried: Sequence[str]) -> str | None:
        """A node that may serve a request; None if all were tried.

        The replicas of a model share its requests: the one with the fewest in flight gets the next. An owner's other
        requests go to one node while it is there, as it knows the owner's graphs; so do the parts of one call.
        """
        nodes = self.directory.nodes
        replicas = self.directory.models.get(route.name) if route.kind == "model" else None
        if not replicas:
            return self._of_owner(head.authorization, tried)
        left = [name for name in replicas if name in nodes and nodes[name].state != "lost" and name not in tried]
        if not left:
            return None
        if head.call:
            return min(left, key=lambda name: _digest(head.call, name))
        turn = next(self._turn)
        rotated = left[turn % len(left) :] + left[: turn % len(left)]
        return min(rotated, key=lambda name: self.pool_of(name).in_flight)

    def _of_owner(self, authorization: bytes, tried: Sequence[str]) -> str | None:
        order = self._orders.get(authorization)
        if order is None:
            states = {name: node.state for name, node in self.directory.nodes.items() if node.state != "lost"}
            order = tuple(sorted(states, key=lambda name: (states[name] != "ready", _digest(authorization, name))))
            if len(self._orders) >= KNOWN_CALLERS:
                self._orders.clear()
            self._orders[authorization] = order
        return next((name for name in order if name not in tried), None)

    def nobody(self, route: GatewayRoute, tried: Sequence[str]) -> MXNetError:
        """The error where no node is left that may serve a request."""
        error: MXNetError
        if not tried:
            error = NotReadyError("cluster: expected a node, got none that has joined: join one, and try again")
        elif route.kind == "model":
            listed = ", ".join(map(repr, tried))
            error = NotReadyError(
                f"model {route.name!r}: expected an answer of a node that serves it, got none ({listed}): try again"
            )
        else:
            error = NotReadyError(f"cluster: expected a node that answers, got none of {len(tried)}: try again")
        error.retry_after = 1.0
        return error

    # -- requests -------------------------------------------------------------------------------------------------

    def exchange(self, client: ClientConnection, head: RequestHead) -> GatewayExchange:
        """A new request."""
        path, prefix = head.path, self.settings.root_path
        if prefix and path.startswith(prefix + "/"):
            path = path[len(prefix) :]
        return GatewayExchange(self, client, head, route_of(head.method, path))

    async def identify(self, head: RequestHead, client: bytes) -> Identity:
        """Who makes a request.

        Raises:
            AuthenticationError: it has no token that is known here.
        """
        return await self._tokens.find(head.authorization or None, client.decode("latin-1"))

    async def open_session(self, head: RequestHead, body: bytes, client: bytes) -> WholeAnswer:
        """Open a session where the controller finds a place."""
        caller = await self.identify(head, client)
        return await open_session(self, head, body, caller.owner, client)

    async def own_answer(self, head: RequestHead, client: bytes) -> dict[str, Any]:
        """The body of the answer of a route of the gateway's own."""
        if head.path.endswith(LIVE):
            return {"live": True}
        caller = await self.identify(head, client)
        in_flight = {name: self._in_flight(node.url) for name, node in self.directory.nodes.items()}
        answer = await self._figures.answer(self.directory, in_flight, caller)
        return {**answer, "controller_reached": self._reached}

    def _in_flight(self, url: str) -> int:
        pool = self._pools.get(url)
        return 0 if pool is None else pool.in_flight


def _digest(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(key + b"\0" + name.encode(), digest_size=8).digest()


def _no_controller() -> NotReadyError:
    error = NotReadyError("controller: expected an answer, got no connection: it is being started again; try again")
    error.retry_after = 1.0
    return error
