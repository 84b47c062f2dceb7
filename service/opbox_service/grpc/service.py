"""GrpcService: answers the calls of the service GRPCInferenceService.

A call's token and scope are checked, and its owner's requests counted, before its message is read. A message counts
among its owner's bodies from the moment that its size is known. Calls that need no token are answered at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from opbox_protocol.errors import (
    BadRequestError,
    DeadlineError,
    LimitError,
    MXNetError,
    NotReadyError,
    QuotaError,
    WireError,
)

from ..api.caller import Identity
from ..api.encodings import WINDOW_BITS, in_thread
from ..api.endpoint import Bodies
from ..api.inflating import InflateStream
from ..api.middleware import NOBODY, Middleware, permit
from ..api.request_context import Disconnected
from ..api.request_heads import check_single
from ..buffers import INLINE
from ..settings import Settings
from .call import GrpcCall, Message, fresh_memory
from .exchange import Caller, GrpcExchange
from .infer_answers import of_stream, stream_error
from .messages import SERVICE
from .methods import Method, RestRequest, methods_of
from .statuses import StatusCode, status_code

__all__ = ["GrpcService"]

AHEAD = 16
"""Requests of a stream that are under way at a time: they may run together in a batch."""
STREAM_ERRORS = "triton_grpc_error"
"""Metadata of a stream that ends with the status of the first error."""
MAX_RATIO = 1032
"""Bytes that one byte of a stream of gzip or deflate can become."""
_STOPPING = "the server is stopping: try again when it, or the one in its place, is ready"


class GrpcService:
    """Answers calls.

    Args:
        middleware: the app that REST has.
        settings: the limits.
    """

    def __init__(self, middleware: Middleware, settings: Settings) -> None:
        self._middleware = middleware
        self._settings = settings
        self._streams: Counter[str] = Counter()
        self._readers: set[asyncio.Task[None]] = set()
        self._methods = {f"/{SERVICE}/{name}": method for name, method in methods_of(settings).items()}

    async def serve(self, call: GrpcCall) -> None:
        """Answer a call."""
        method = self._methods.get(call.path)
        if method is None:
            call.finish(StatusCode.UNIMPLEMENTED, f"{call.path[:100]}: expected a method of {SERVICE}")
            return
        try:
            async with asyncio.timeout(call.timeout_s) as deadline:
                await (self._stream(method, call) if method.streams else self._answer(method, call))
        except TimeoutError:
            if not deadline.expired():
                raise
            call.finish(
                StatusCode.DEADLINE_EXCEEDED, "the call: expected its answer by the client's deadline, got none"
            )
        except Disconnected:
            call.lose()
            call.finish(StatusCode.CANCELLED)

    def end_streams(self) -> None:
        """Read no more requests of streams; they end when those that have come are answered."""
        for reader in self._readers:
            reader.cancel()

    async def _answer(self, method: Method, call: GrpcCall) -> None:
        """Answer a call that has one message."""
        caller = Caller.of(call)
        identity, refused = NOBODY, None
        message = _NO_MESSAGE
        try:
            identity = await self._identify(method, call, caller)
            if method.route.token:
                message = await self._first_message(method, call, identity.owner)
        except MXNetError as error:
            refused = error.with_traceback(None)  # which refers to the message
        exchange = await self._exchange(method, caller, identity, message, refused, call.write)
        _finish(call, exchange)

    async def _exchange(
        self,
        method: Method,
        caller: Caller,
        identity: Identity,
        message: _CountedMessage,
        refused: MXNetError | None,
        send: Callable[[Sequence[Message]], Awaitable[None]],
    ) -> GrpcExchange:
        """Make the request of a message, and send its answer."""
        request = RestRequest(method.route, {})
        try:
            if refused is None:
                request = await _request_of(method, message.data)
        except MXNetError as error:
            refused = error.with_traceback(None)  # which refers to the message
        exchange = GrpcExchange(method, request, caller, identity, refused, message.release, send)
        message.data = b""
        try:
            await exchange.run(self._middleware)
        finally:
            message.release()
        return exchange

    async def _identify(self, method: Method, call: GrpcCall, caller: Caller) -> Identity:
        """Who makes a call; MXNetError where its token will not do, or where it has two."""
        check_single(caller.headers)
        if not method.route.token:
            return NOBODY
        identity = await self._middleware.caller(caller.authorization, caller.address)
        permit(identity, method.route)
        call.accept()
        return identity

    async def _first_message(self, method: Method, call: GrpcCall, owner: str) -> _CountedMessage:
        """The message of a call, which counts as a request of its owner's meanwhile.

        Raises:
            DeadlineError: it does not come.
            QuotaError, NotReadyError: there are too many, or there is no place for it.
        """
        stall_s = self._settings.stall_s
        self._middleware.admit(owner)
        try:
            async with asyncio.timeout(stall_s):
                message = await self._message(method, call, owner)
        except TimeoutError:
            raise DeadlineError(
                f"the message: expected it within {stall_s:g} s, got a part: send it faster, or start the server with "
                "a larger OPBOX_STALL_S"
            ) from None
        finally:
            self._middleware.leave(owner)
        if message is None:
            raise BadRequestError("the message: expected one, got the end of the call")
        return message

    async def _message(self, method: Method, call: GrpcCall, owner: str) -> _CountedMessage | None:
        """The next message of a call; None at its end."""
        bodies = self._middleware.bodies(owner)
        try:
            came = await call.read(method.max_bytes, bodies.take)
            if came is None:
                return None
            data, compressed = came
            if compressed:
                data = await _inflated(data, call.encoding, method.max_bytes, bodies.take)
            return _CountedMessage(data, bodies)
        except BaseException:
            bodies.release()
            raise

    async def _stream(self, method: Method, call: GrpcCall) -> None:
        caller = Caller.of(call)
        try:
            identity = await self._identify(method, call, caller)
            self._check_streams(identity.owner)
        except MXNetError as error:
            _finish(call, await self._exchange(method, caller, NOBODY, _NO_MESSAGE, error, call.write))
            return
        self._streams[identity.owner] += 1
        try:
            await self._answer_all(method, caller, identity, call)
        finally:
            self._streams[identity.owner] -= 1
            if not self._streams[identity.owner]:
                del self._streams[identity.owner]

    def _check_streams(self, owner: str) -> None:
        limit = self._settings.max_in_flight_per_owner
        if self._streams[owner] >= limit:
            raise QuotaError(f"streams: expected at most {limit} of an owner at a time: end one first")
        if self._middleware.server.stopping:
            raise NotReadyError(_STOPPING)

    async def _answer_all(self, method: Method, caller: Caller, identity: Identity, call: GrpcCall) -> None:
        """Answer the messages of a stream in their order; some are under way ahead of the one that is answered next."""
        exchanges: asyncio.Queue[tuple[asyncio.Task[GrpcExchange], asyncio.Event] | BaseException | None]
        exchanges = asyncio.Queue()
        ahead = asyncio.Semaphore(AHEAD)
        running: dict[asyncio.Task[GrpcExchange], asyncio.Event] = {}
        over = False

        async def answer(message: _CountedMessage, turn: asyncio.Event) -> GrpcExchange:
            async def send(pieces: Sequence[Message]) -> None:
                await turn.wait()
                if over:
                    raise Disconnected
                await call.write(of_stream(pieces), last=False)

            caller_now = await self._again(method, caller)
            if isinstance(caller_now, MXNetError):
                return await self._exchange(method, caller, NOBODY, message, caller_now, send)
            return await self._exchange(method, caller, caller_now, message, None, send)

        async def read_all() -> None:
            end: BaseException | None = None
            try:
                while True:
                    await ahead.acquire()
                    message = await self._message(method, call, identity.owner)
                    if message is None:
                        return
                    turn = asyncio.Event()
                    task = asyncio.create_task(answer(message, turn))
                    running[task] = turn
                    task.add_done_callback(running.pop)
                    exchanges.put_nowait((task, turn))
            except (MXNetError, Disconnected) as error:
                end = error
            finally:
                exchanges.put_nowait(end)

        reader = asyncio.create_task(read_all())
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        try:
            while isinstance(entry := await exchanges.get(), tuple):
                task, turn = entry
                turn.set()
                exchange = await task
                ahead.release()
                if not exchange.error:
                    continue
                if call.headers.get(STREAM_ERRORS.encode()) == b"true":
                    _finish(call, exchange)
                    return
                await call.write([stream_error(exchange.error, exchange.id)], last=False)
            if isinstance(entry, MXNetError):
                # What follows on the stream cannot be told from what was refused.
                _finish(call, await self._exchange(method, caller, identity, _NO_MESSAGE, entry, call.write))
            elif entry is not None:
                raise entry
            elif self._middleware.server.stopping:
                call.finish(StatusCode.UNAVAILABLE, _STOPPING)
            else:
                call.finish(StatusCode.OK)
        finally:
            over = True
            reader.cancel()
            for task, turn in running.items():
                turn.set()  # an answer that waits for it is given up
                task.cancel()

    async def _again(self, method: Method, caller: Caller) -> Identity | MXNetError:
        """Who makes a request of a stream: its token may have ended since the stream began."""
        try:
            identity = await self._middleware.caller(caller.authorization, caller.address)
            permit(identity, method.route)
        except MXNetError as error:
            return error
        return identity


class _CountedMessage:
    """A message, which counts among its owner's bodies until it is released."""

    __slots__ = ("_bodies", "data")

    def __init__(self, data: Message, bodies: Bodies | None) -> None:
        self.data = data
        self._bodies = bodies

    def release(self) -> None:
        """Count it no more. Calling it twice is safe."""
        if self._bodies is not None:
            self._bodies.release()


_NO_MESSAGE = _CountedMessage(b"", None)


def _finish(call: GrpcCall, exchange: GrpcExchange) -> None:
    """End a call with the status of its exchange."""
    status = status_code(exchange.status, exchange.kind) if exchange.error else StatusCode.OK
    call.finish(status, exchange.error, exchange.metadata)


async def _request_of(method: Method, message: Message) -> RestRequest:
    if len(message) > INLINE:
        return await in_thread(lambda: method.read(message))
    return method.read(message)


async def _inflated(data: Message, coding: str, limit: int, count: Callable[[int], None]) -> Message:
    """The content of a compressed message, which counts as it is made."""
    if coding == "identity":
        raise BadRequestError("the message: expected grpc-encoding to say how it is compressed, got none")
    if coding not in WINDOW_BITS:
        raise BadRequestError(f"grpc-encoding: expected one of {', '.join(WINDOW_BITS)}, got {coding[:40]!r}")
    stream = InflateStream(data, coding)
    content, size = fresh_memory(min(limit, MAX_RATIO * len(data))), 0
    try:
        while piece := await in_thread(stream.read) if len(data) > INLINE or size else stream.read():
            if size + len(piece) > len(content):
                raise LimitError(f"the message: expected at most {limit} bytes, got more in its {coding} stream")
            count(len(piece))
            content[size : size + len(piece)] = piece
            size += len(piece)
    except WireError:
        raise BadRequestError(
            f"the message: expected one whole {coding} stream, as grpc-encoding says, got other bytes"
        ) from None
    return content[:size]
