"""Exchange: one request on its way to a node, and the answer on its way back.

A request may be made again in two cases. One that is safe to run twice (infer) goes to another replica when its node
dies before it has answered. A call with a number (`Opbox-Call`) goes to the same node once more, which runs it once.
Until the answer begins their bodies are kept for that, up to a bound.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING

from opbox_protocol.errors import GoneError, LimitError, MXNetError, NotFoundError, NotReadyError, WorkerDiedError

from ..documents import GoneSession
from .heads import AnswerHead, RequestHead
from .large_bodies import LargeAnswer, LargeBody
from .merging import LISTS, merged_list
from .node_connections import NodeConnection, NodePool
from .placing import MAX_BODY
from .routing import GatewayRoute

if TYPE_CHECKING:
    from .client_connection import ClientConnection
    from .server import ClusterGateway

__all__ = ["GatewayExchange", "unreached"]

ONE_WRITE = 1 << 16
"""A head and what follows it go in one write up to this many bytes: a copy of them is cheaper than a second write."""
KEPT_BYTES = 16 << 20
"""Maximum bytes of a body that are kept, to make the request again."""
WAITING_BYTES = 1 << 18
"""Bytes of a body that are read before there is a connection to a node."""


def unreached(name: str, cause: Exception | None = None) -> NotReadyError:
    """The error for a node that is not reached. Its detail says so: an earlier try of the call may have run there."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        error = NotReadyError(
            f"node {name!r}: expected a certificate that the gateway trusts, got another: {cause.verify_message}: "
            "start the gateway with SSL_CERT_FILE, the file of its authority"
        )
    else:
        error = NotReadyError(
            f"node {name!r}: expected it to answer, got no connection: try again; when the cluster counts it as lost, "
            "its sessions are answered 410"
        )
    error.retry_after, error.detail = 1.0, {"unreached": name}
    return error


class GatewayExchange:
    """One request.

    Args:
        gateway, client: which it is of.
        head: of the request.
        route: whom it is for.
    """

    def __init__(
        self, gateway: ClusterGateway, client: ClientConnection, head: RequestHead, route: GatewayRoute
    ) -> None:
        self.gateway, self.client, self.head, self.route = gateway, client, head, route
        self._again = route.again or bool(head.call)
        self._is_own = route.kind in ("place", "list", "own")
        self._body_parts: list[bytes] | None = []
        self._kept_bytes = 0
        self._whole = False
        self._node: NodeConnection | None = None
        self._tried: list[str] = []
        self._name = ""
        self._began = False
        self._answer_head = b""
        self._http10_chunks = self._close = False
        self._task: asyncio.Task[None] | None = None
        self._large_body: LargeBody | None = None
        self._large_answer: LargeAnswer | None = None

    # -- whom it goes to ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Find its node, and send it there."""
        route = self.route
        if route.kind == "session":
            name = self.gateway.node_of(route.name)
            if name is None:
                self._later(self._find_session())
            else:
                self._send_to(name)
        elif route.kind == "model" and not self.gateway.is_listed(route.name):
            self._later(self._find_model())
        elif route.kind in ("any", "model"):
            self._choose()

    async def _find_model(self) -> None:
        """Look for the caller's own model of this name; a node answers for one that no node has."""
        name = await self.gateway.own_model(self.route.name, self.head, self.client.address)
        self.route = replace(self.route, name=name)
        self._choose()

    def _choose(self) -> None:
        """Send it to a node that may serve it and was not tried."""
        name = self.gateway.choose(self.route, self.head, self._tried)
        if name is None:
            self.fail(self.gateway.nobody(self.route, self._tried))
        else:
            self._send_to(name)

    async def _find_session(self) -> None:
        place = await self.gateway.where(self.route.name)
        if isinstance(place, GoneSession):
            error: MXNetError = (GoneError if place.status == 410 else NotFoundError)(place.reason)
            if place.moved:
                error.detail = {"moved": place.moved}
            self.fail(error)
        else:
            await self._connect(self.gateway.pool(place))

    def _send_to(self, name: str) -> None:
        self._name = name
        pool = self.gateway.pool_of(name)
        connection = pool.take()
        if connection is not None:
            self._attach(connection)
        else:
            self._later(self._connect(pool))

    async def _connect(self, pool: NodePool) -> None:
        try:
            connection = await pool.connect()
        except (OSError, TimeoutError) as error:
            self._unreached(error)
        else:
            self._attach(connection)

    def _unreached(self, cause: Exception) -> None:
        """Nothing was sent: another node may have it, unless it is for this one alone."""
        self._tried.append(self._name)
        if self.route.kind in ("any", "model"):
            self._choose()
        else:
            self.fail(unreached(self._name, cause))

    async def _serve_own(self) -> None:
        """Answer what the gateway answers itself."""
        gateway, address = self.gateway, self.client.address
        body = b"".join(self._body_parts or ())
        self._drop_kept()
        if self.route.kind == "place":
            self.client.pass_on(await gateway.open_session(self.head, body, address))
            return
        if self.route.kind == "list":
            self.client.pass_on(await merged_list(gateway, self.head, LISTS[self.route.name], address))
            return
        answer = await gateway.own_answer(self.head, address)
        self.client.answer(200, answer, head_only=self.head.method == "HEAD")
        self.client.end_answer()

    def _later(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except MXNetError as error:
            self.fail(error)

    # -- the request --------------------------------------------------------------------------------------------

    def _attach(self, connection: NodeConnection) -> None:
        self._node = connection
        head = self.head.for_node(self.client.address)
        parts = self._body_parts or ()
        if self._kept_bytes <= ONE_WRITE:
            connection.begin(self, self.head.method, b"".join((head, *parts)))
        else:
            connection.begin(self, self.head.method, head)
            for piece in parts:
                connection.transport.write(piece)
        connection.sent = self._whole
        if not self._again:
            self._drop_kept()
        self.client.release("node")

    def body_came(self, data: bytes) -> None:
        """Take a part of the body."""
        if self._is_own:
            self._kept_bytes += len(data)
            self.gateway.kept_bytes += len(data)
            if self._body_parts is not None:
                self._body_parts.append(data)
            if self._kept_bytes > MAX_BODY:
                self.fail(LimitError(f"body: expected at most {MAX_BODY} bytes for this route, got more: send less"))
            return
        if self.head.length is None:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self._node is not None:
            self._node.transport.write(data)
        if self._body_parts is not None:
            self._body_parts.append(data)
            self.keep_more(len(data))

    @property
    def keeps(self) -> bool:
        """Whether the body is kept, to be sent again."""
        return self._body_parts is not None

    def keep_more(self, nbytes: int) -> None:
        """So many bytes of the body have been kept."""
        if self._body_parts is None:
            return
        self._kept_bytes += nbytes
        self.gateway.kept_bytes += nbytes
        if self._node is None:
            if self._kept_bytes > WAITING_BYTES:
                self.client.hold("node")
        elif self._kept_bytes > KEPT_BYTES or self.gateway.kept_bytes > self.gateway.max_kept_bytes:
            self._again = False
            self._drop_kept()

    def much_is_left(self) -> None:
        """At least RELAYED_BYTES are still to come of a body of a known size."""
        node = self._node
        if node is None or self._large_body is not None:
            return
        if self.gateway.relays.may_open(self.client.transport, node.transport):
            if self.keeps and (self.head.length or 0) > KEPT_BYTES:
                self._again = False
                self._drop_kept()
            self._large_body = LargeBody(self, node)

    def large_body_ended(self) -> None:
        """The body is not relayed."""
        self._large_body = None

    def body_ended(self) -> None:
        """The body is whole."""
        if self._is_own:
            self._later(self._serve_own())
            return
        if self.head.length is None:
            self._pass_on(b"0\r\n\r\n")
        self._whole = True
        if self._node is not None:
            self._node.sent = True

    def _drop_kept(self) -> None:
        self.gateway.kept_bytes -= self._kept_bytes
        self._body_parts, self._kept_bytes = None, 0
        if self._large_body is not None:
            self._large_body.drop_kept()

    # -- the answer ---------------------------------------------------------------------------------------------

    def answer_began(self, head: AnswerHead) -> None:
        """See AnswerTaker."""
        if head.status < 200:
            if not self.head.http10:
                self.client.write(head.text + b"\r\n")
            return
        self._began = True
        self._again = False
        if self._body_parts is not None:
            self._drop_kept()
        self._http10_chunks = self.head.http10 and head.length is None
        keep = self.client.keeps_alive and head.length != -1
        self._answer_head = head.for_client(keep_alive=keep, http10=self.head.http10)
        self._close = not keep

    def answer_data(self, raw: bytes, data: list[bytes] | None) -> None:
        """See AnswerTaker."""
        if self._http10_chunks and data is not None:
            raw = b"".join(data)
        if self._answer_head:
            if len(raw) <= ONE_WRITE:
                raw = self._answer_head + raw
            else:
                self.client.write(self._answer_head)
            self._answer_head = b""
        self.client.write(raw)

    def answer_paused(self) -> None:
        """See AnswerTaker."""
        if self._answer_head:
            self.client.write(self._answer_head)
            self._answer_head = b""

    def answer_is_large(self, connection: NodeConnection) -> None:
        """See AnswerTaker."""
        if self._large_answer is not None:
            return
        if self.gateway.relays.may_open(self.client.transport, connection.transport):
            self.answer_paused()
            self._large_answer = LargeAnswer(self, connection)

    def large_answer_ended(self) -> None:
        """The answer is not relayed any more."""
        self._large_answer = None

    def answer_ended(self) -> None:
        """See AnswerTaker."""
        self.answer_paused()
        self._stop_relays()
        self._node = None
        self.client.end_answer(close=self._close)

    def node_broke(self, connection: NodeConnection) -> None:
        """See AnswerTaker."""
        self._node = None
        sent = self._stop_relays(keep=self.keeps)
        if self._body_parts is not None:
            self._body_parts += sent
        if self._began:
            self.client.abort()
        elif self._again and self.route.again:
            self._tried.append(self._name)
            self.client.release("full")
            self._choose()
        elif self._again and self._name not in self._tried:
            self._tried.append(self._name)
            self.client.release("full")
            self._later(self._connect(connection.pool))
        else:
            self.fail(
                WorkerDiedError(
                    f"node {self._name!r}: expected an answer, got the end of the connection: the request may have "
                    "run; look whether it has before you make it again"
                )
            )

    def fail(self, error: MXNetError) -> None:
        """Answer with an error."""
        self._stop_relays()
        if self._body_parts is not None:
            self._drop_kept()
        self.client.fail(error, head_only=self.head.method == "HEAD")

    def node_is_full(self, full: bool) -> None:
        """See AnswerTaker."""
        if full:
            self.client.hold("full")
        else:
            self.client.release("full")

    def client_is_full(self, full: bool) -> None:
        """Read no more of the answer while the client has not read what there is."""
        if self._node is not None:
            (self._node.hold if full else self._node.release)("full")

    def _stop_relays(self, *, keep: bool = False) -> list[bytes]:
        """Relay no more; with `keep`, return what was relayed of the body."""
        sent: list[bytes] = []
        if self._large_answer is not None:
            self._large_answer.stop()
            self._large_answer = None
        if self._large_body is not None:
            sent = self._large_body.stop(keep=keep)
            self._large_body = None
        return sent

    def abandon(self) -> None:
        """The client has gone."""
        self._stop_relays()
        if self._body_parts is not None:
            self._drop_kept()
        if self._task is not None:
            self._task.cancel()
        if self._node is not None:
            self._node.drop()
            self._node = None
