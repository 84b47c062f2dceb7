"""A server from asyncio, by httpx: shapes, graphs and sessions, with the names and errors of the rest of opbox.

async with mx.aio.connect("http://gpu-box:8000", token="…") as server:
    shapes = await server.infer_shape(net, data=(8, 3, 224, 224))
    outputs = await server.forward(net, {"data": images, **parameters})
    async with server.session("cpu") as session:
        x = session.put(np.ones((2, 3), np.float32))
        y = session.new_id()
        session.record({"do": "invoke", "op": "exp", "inputs": [x], "outputs": [y]})
        values = await session.fetch(y)

Many calls may be under way at a time, on connections of a pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np

from opbox_protocol import routes
from opbox_protocol.commands import Command
from opbox_protocol.errors import (
    AuthenticationError,
    MXNetError,
    NotFoundError,
    NotReadyError,
    TransportError,
    UnsupportedError,
)
from opbox_protocol.transport import Reply

from . import token_store
from .call_numbers import CallNumbers
from .exchange import OutgoingCall, Request, exchange
from .gateway import Gateway
from .http import Chunks, ServerAddress
from .http_failures import Attempted, failure
from .http_messages import ReadReply, Received, encode_call, read_reply
from .inference import Shapes, shape_answer, shape_query
from .known_graphs import Document, GraphName, KnownGraphs, is_unknown
from .operator.sending import has_own_code
from .repeated_calls import Attempts, again
from .server_scope import AsyncClosing, server_named
from .symbol import Symbol
from .trace_context import traced
from .unfilled_places import TAKEN

__all__ = ["AsyncServer", "AsyncSession", "connect"]

Arrays = Mapping[str, np.ndarray[Any, Any]]
CONNECTIONS = 32
"""Maximum number of connections of a client that opbox makes; further calls wait for one."""


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    http: httpx.AsyncClient | None = None,
    timeout: float | None = None,
    patience: float | None = None,
) -> AsyncServer:
    """Return a server for use with `async with`. No connection is opened before the first call.

    Args:
        url: "http://host:port"; by default OPBOX_URL.
        token: its token; by default OPBOX_TOKEN, or the one that a server on this machine stored.
        http: a client of yours, which you close; by default one that is closed with the server.
        timeout: seconds to wait for an answer; by default OPBOX_TIMEOUT or 600.
        patience: seconds to try again when the server restarts or the connection breaks; by default OPBOX_PATIENCE or
            30.

    Raises:
        MXNetError: no address, or none that is one.
        TypeError: `http` is no httpx.AsyncClient.

    Example:
        >>> async with mx.aio.connect("http://gpu-box:8000", token="…") as server:
        ...     shapes = await server.infer_shape(net, data=(2, 3))
    """
    return AsyncServer(*server_named("aio.connect", url, token), http, timeout, patience)


class AsyncServer(AsyncClosing):
    """A server that is called from asyncio; see `connect`.

    Args:
        url: its address.
        token: its token; None for the one that a server on this machine stored.
        http: a client of the program's own, or None.
        timeout, patience: in seconds; None for the environment's.

    Attributes:
        address: its URL.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        http: httpx.AsyncClient | None = None,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> None:
        if http is not None and not isinstance(http, httpx.AsyncClient):
            wanted = "; mx.connect takes a Client" if isinstance(http, httpx.Client) else ""
            raise TypeError(f"http: expected an httpx.AsyncClient, got {type(http).__name__}{wanted}")
        self._server = ServerAddress(url, token or token_store.read(url), timeout, patience)
        self._stored = not token
        self.address = self._server.name
        self._own = http is None
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=15)
        self._client = http or httpx.AsyncClient(limits=limits)
        self._numbers = CallNumbers()
        self._gateway = Gateway()
        self._graphs = KnownGraphs()
        self._answered: float | None = None

    def __repr__(self) -> str:
        return f"<AsyncServer {self.address}>"

    async def close(self) -> None:
        """Close the connections; those of a client of your own stay open."""
        if self._own:
            await self._client.aclose()

    # -- calls --------------------------------------------------------------------------------------------------

    async def about(self) -> dict[str, Any]:
        """Return the server's name and version, and what computes on its CPU."""
        return (await self.call("GET", routes.ABOUT)).header

    async def operators(self) -> list[dict[str, Any]]:
        """Return the server's operators: names, inputs, outputs and parameters."""
        rows: list[dict[str, Any]] = (await self.call("GET", routes.OPERATORS)).header["operators"]
        return rows

    async def infer_shape(self, symbol: Symbol, *args: Any, **kwargs: Any) -> Shapes:
        """Return the shapes of arguments, outputs and auxiliary states, as `Symbol.infer_shape`.

        Args:
            symbol: the graph.
            args, kwargs: known shapes, by position of the arguments or by name.

        Raises:
            ShapeError: shapes contradict each other.
        """
        query: dict[str, Any] = {**shape_query(symbol, args, kwargs)}
        del query["do"]
        reply = await self._about_graph(routes.INFER_SHAPE, symbol, query, {})
        return shape_answer(reply.header, False)

    async def forward(
        self,
        symbol: Symbol,
        inputs: Arrays,
        *,
        is_train: bool = False,
        seed: int = 0,
        device: str | None = None,
        batch: bool = False,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Run a graph and return its outputs by name.

        Args:
            symbol: the graph.
            inputs: values of all arguments and auxiliary states by name.
            is_train: whether dropout and batch normalization behave as in training.
            seed: of random operators.
            device: "cpu", "gpu" or "gpu:1"; by default the server's.
            batch: whether the call may run together with others of yours that have the same graph and weights. The
                first axis of inputs and outputs then counts examples that do not depend on each other, and outputs may
                differ in their last bits from one time to the next.

        Raises:
            ShapeError: shapes contradict each other.
            MXNetError: another error of the server's.
        """
        options = _options(is_train, seed, device)
        if batch:
            options["parameters"]["batch"] = True
        reply = await self._about_graph(routes.FORWARD, symbol, options, inputs)
        return reply.tensors

    async def backward(
        self,
        symbol: Symbol,
        inputs: Arrays,
        head_grads: Arrays | None = None,
        *,
        grads: Sequence[str] | None = None,
        is_train: bool = True,
        seed: int = 0,
        device: str | None = None,
    ) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
        """Run a graph and its gradient; return the gradients by argument, and the outputs by name.

        Args:
            symbol, inputs, is_train, seed, device: see `forward`.
            head_grads: gradients of the outputs by output name; a loss needs none.
            grads: arguments whose gradients are wanted; by default all.

        Raises:
            MXNetError: an error of the server's.
        """
        options = _options(is_train, seed, device)
        if grads is not None:
            options["parameters"]["grads"] = list(grads)
        heads = {routes.HEAD_GRAD + name: value for name, value in (head_grads or {}).items()}
        reply = await self._about_graph(routes.BACKWARD, symbol, options, {**inputs, **heads})
        gradients = {
            name.removeprefix(routes.GRAD): value
            for name, value in reply.tensors.items()
            if name.startswith(routes.GRAD)
        }
        return gradients, {name: value for name, value in reply.tensors.items() if not name.startswith(routes.GRAD)}

    def session(self, device: str = "cpu") -> AsyncSession:
        """Return a session on a device, which `async with` opens and ends."""
        return AsyncSession(self, device)

    async def _about_graph(self, path: str, symbol: Symbol, header: Mapping[str, Any], tensors: Arrays) -> Reply:
        if has_own_code(symbol):
            raise UnsupportedError(
                "aio: expected a graph of the server's operators, got one with operators of your own"
            )
        document = Document(symbol._document())
        reference = self._graphs.reference(document)
        arrays = {name: np.asarray(value) for name, value in tensors.items()}
        try:
            return await self.call("POST", path, {"graph": reference, **header}, arrays)
        except NotFoundError as error:
            if not isinstance(reference, GraphName) or not is_unknown(reference, error):
                raise
        return await self.call("POST", path, {"graph": document, **header}, arrays)

    async def call(
        self, method: str, path: str, header: Mapping[str, Any] | None = None, tensors: Arrays | None = None
    ) -> Reply:
        """Make one call; see `HttpTransport.call`.

        Raises:
            MXNetError: the server refused.
            TransportError: it could not be reached.
        """
        return await self.exchange(method, path, *encode_call(header, tensors), read_reply)

    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], chunks: Sequence[Any], read: ReadReply
    ) -> Reply:
        """Make a call whose body is written already; see `HttpTransport.exchange`."""
        patience, met, renewed = self._server.patience, self._gateway.met, False
        attempts = Attempts(method, path, patience, self._numbers, gateway_met=met)
        try:
            while True:
                token = self._server.token
                try:
                    return await self._call(method, path, headers, chunks, read, attempts)
                except AuthenticationError:
                    if self._stored and self._server.token == token:
                        self._server.use_token(token_store.read(self.address) or token)
                    if renewed or self._server.token == token:
                        raise
                    renewed = True
                except (NotReadyError, TransportError) as error:
                    pause = attempts.pause(error, reached=self._answered is not None)
                    if pause is None:
                        raise
                    await asyncio.sleep(pause)
        finally:
            attempts.end()

    async def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        chunks: Sequence[Any],
        read: ReadReply,
        attempts: Attempts,
    ) -> Reply:
        server = self._server
        if self._client.is_closed:
            raise TransportError(f"{self.address}: the connection was closed; connect again")
        own = traced(server.headers)
        call = OutgoingCall(method, path, own, headers, chunks, attempts, server.timeout, self.address)
        steps = exchange(call, self._gateway, self._numbers, partial(self._read, read))
        request = next(steps)
        while True:
            received = await self._round_trip(request, attempts)
            try:
                request = steps.send(received)
            except StopIteration as end:
                reply: Reply = end.value
                return reply

    async def _round_trip(self, request: Request, attempts: Attempts) -> Received:
        """Send a request and read its answer."""
        server = self._server
        timeout = httpx.Timeout(server.timeout, connect=self._client.timeout.connect)
        content = _AsyncChunks(request.chunks) if request.chunks else None
        outgoing = self._client.build_request(
            request.method, server.base + request.path, headers=request.headers, content=content, timeout=timeout
        )
        try:
            response = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            raise failure(error, self._attempted(attempts)) from error
        try:
            body = await response.aread()
        except httpx.TimeoutException as error:
            raise failure(error, self._attempted(attempts)) from error
        except httpx.HTTPError as error:
            lost = f"{self.address}: the answer to {request.method} {request.path} was broken off"
            raise again(TransportError(lost)) from error
        finally:
            await response.aclose()
        came = response.num_bytes_downloaded
        return Received(response.status_code, response.reason_phrase, response.headers, bytearray(body), came)

    def _read(self, read: ReadReply, received: Received, request: Request) -> Reply | MXNetError:
        """Return the server's reply, or its error."""
        reached = self._answered is not None
        place = request.method, request.path, request.sent
        reply = read(received, self.address, *place, tls=self._server.tls, reached=reached)
        self._answered = time.monotonic()
        return reply

    def _attempted(self, attempts: Attempts) -> Attempted:
        server = self._server
        return Attempted(self.address, attempts.begun, self._answered, server.timeout, server.tls, "")


class AsyncSession(AsyncClosing):
    """A session on a device of a server: arrays and executors there, and commands that run in order.

    Commands are recorded at once and leave with the next `flush`, `ask`, `fetch` or `wait`. Each is one request.

    Args:
        server: the server.
        device: "cpu" or "gpu:0".

    Attributes:
        id: its name on the server; "" before it is opened.
        new_id: makes a number for a new array or executor.
        requests: batches sent so far.
    """

    def __init__(self, server: AsyncServer, device: str) -> None:
        self._server = server
        self.device = device
        self.id = ""
        self.requests = 0
        self._ids = itertools.count(1)
        self._commands: list[Command] = []
        self._tensors: dict[str, np.ndarray[Any, Any]] = {}
        self._unfilled: set[int] = set()

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} on {self.device}>"

    async def __aenter__(self) -> AsyncSession:
        reply = await self._server.call("POST", routes.SESSIONS, {"device": self.device})
        self.id = reply.header["id"]
        return self

    def new_id(self) -> int:
        """Return a number for a new array or executor."""
        return next(self._ids)

    def record(self, command: Command, tensor: np.ndarray[Any, Any] | None = None) -> None:
        """Add a command to the next batch; `tensor` travels with it."""
        if tensor is not None:
            name = f"t{len(self._tensors)}"
            self._tensors[name] = np.asarray(tensor)
            command = {**command, "tensor": name}  # type: ignore[assignment]  # of those with one
        self._commands.append(command)

    def put(self, value: Any) -> int:
        """Record that an array is made of a value, and return its number."""
        id = self.new_id()
        self.record({"do": "put", "id": id, "tensor": ""}, np.asarray(value))
        return id

    async def fetch(self, id: int) -> np.ndarray[Any, Any]:
        """Return the value that an array has after what is recorded.

        Raises:
            MXNetError: a command failed.
        """
        self.record({"do": "fetch", "id": id, "as": "value"})
        return (await self._send(wait=True)).tensors["value"]

    async def ask(self, command: Command) -> dict[str, Any]:
        """Return the result of a command.

        Raises:
            MXNetError: a command failed.
        """
        self.record(command)
        results: list[dict[str, Any]] = (await self._send(wait=True)).header["results"]
        return results[-1]

    async def flush(self) -> None:
        """Send what is recorded, without waiting until it has run; its errors come with the next `wait`."""
        if self._commands:
            await self._send(wait=False)

    async def wait(self) -> None:
        """Wait until everything recorded so far has run.

        Raises:
            MXNetError: the first command that failed since the last wait.
        """
        if self._commands or self.requests:
            await self._send(wait=True)

    async def _send(self, *, wait: bool) -> Reply:
        if not self.id:
            raise TransportError("the session: expected one that `async with` has opened, got one that is closed")
        commands, tensors = self._commands, self._tensors
        self._commands, self._tensors = [], {}
        await self._fill()
        self.requests += 1
        path, seq = routes.COMMANDS.format(id=self.id), self.requests
        try:
            return await self._server.call("POST", path, {"seq": seq, "commands": commands, "wait": wait}, tensors)
        except MXNetError as error:
            if "command" not in error.detail:
                self._unfilled.add(seq)
                with contextlib.suppress(MXNetError):  # the next batch tries again, and tells it
                    await self._fill()
            raise

    async def _fill(self) -> None:
        """Send an empty batch in the place of each that was refused whole: the server waits for it."""
        path = routes.COMMANDS.format(id=self.id)
        for seq in sorted(self._unfilled):
            try:
                await self._server.call("POST", path, {"seq": seq, "commands": [], "wait": False})
            except MXNetError as error:
                if error.status not in TAKEN:
                    raise
            self._unfilled.discard(seq)

    async def close(self) -> None:
        """End the session on the server; what is recorded and not sent is dropped."""
        id, self.id = self.id, ""
        if id:
            with contextlib.suppress(MXNetError):  # it may have gone already, or its server
                await self._server.call("DELETE", routes.SESSION.format(id=id))


class _AsyncChunks:
    """A body in pieces for an AsyncClient; httpx takes what has an `__iter__` for one of a Client."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self._chunks = Chunks(chunks)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for piece in self._chunks:
            yield piece


def _options(is_train: bool, seed: int, device: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"is_train": is_train, "seed": seed}
    if device is not None:
        parameters["device"] = device
    return {"parameters": parameters}
