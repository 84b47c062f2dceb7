"""GrpcService: answers the calls of the service GRPCInferenceService.

A call's token and scope are checked, and its owner's requests counted, before its message is read: whoever has no token
can have the server hold no more than gRPC's window of an unread message. How large a message is, is known only when it
is here; so an owner has as many read at a time as the owner's transfer buffers would hold of the largest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

import grpc

from opbox_protocol.errors import DeadlineError, MXNetError, NotReadyError, QuotaError

from ..api.caller import Identity
from ..api.middleware import NOBODY, Middleware, permit
from ..api.request_heads import check_single
from ..settings import Settings
from .exchange import LARGE, Caller, GrpcExchange
from .infer_answers import of_stream, stream_error
from .messages import SERVICE
from .methods import Method, RestRequest, methods_of
from .statuses import status_code

__all__ = ["GrpcService"]

AHEAD = 16
"""Requests of a stream that are under way at a time: they may run together in a batch."""
DETAILS_BYTES = 4096
"""The longest sentence of a status, as it travels: clients refuse an answer whose metadata have 8 KiB."""
STREAM_ERRORS = ("triton_grpc_error", "true")
"""Metadata of a stream that ends with the status of the first error."""
_STOPPING = "the server is stopping: try again when it, or the one in its place, is ready"


class GrpcService(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Finds the handler of a call.

    Args:
        middleware: the app that REST has.
        settings: the limits.
    """

    def __init__(self, middleware: Middleware, settings: Settings) -> None:
        self._middleware = middleware
        self._settings = settings
        self._streams: Counter[str] = Counter()
        self._at_a_time = max(1, settings.max_owner_buffer_bytes // settings.max_grpc_bytes)
        self._reading: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._readers: set[asyncio.Task[None]] = set()
        methods = methods_of(settings)
        # Also a call with one message is served as a stream of them: of those the server says when to read.
        self._handlers = {
            f"/{SERVICE}/{name}": grpc.stream_stream_rpc_method_handler(self._streaming(method))
            if name == "ModelStreamInfer"
            else grpc.stream_unary_rpc_method_handler(self._answering(method))
            for name, method in methods.items()
        }

    def service(self, details: Any) -> Any:
        """The handler of a call; None where there is no such method."""
        return self._handlers.get(details.method)

    def end_streams(self) -> None:
        """Read no more requests of streams; they end when those that have come are answered."""
        for reader in self._readers:
            reader.cancel()

    def _answering(self, method: Method) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def answer(messages: Any, context: Any) -> bytes:
            caller = Caller.of(context.invocation_metadata(), context.peer())
            exchange = await self._exchange(method, caller, context.read)
            context.set_trailing_metadata(tuple(exchange.metadata))
            if exchange.message is None:
                await context.abort(status_code(exchange.status, exchange.kind), _details(exchange.error))
            return exchange.message or b""

        return answer

    async def _exchange(self, method: Method, caller: Caller, read: Callable[[], Awaitable[Any]]) -> GrpcExchange:
        """The answer to one message, which is read when its owner may send one."""
        identity, request, refused = NOBODY, RestRequest(method.route, {}), None
        try:
            identity = await self._identify(method, caller)
            message = await self._read(identity.owner, read)
            request = await _request_of(method, message)
        except MXNetError as error:
            refused = error
        exchange = GrpcExchange(method, request, caller, identity, refused)
        await exchange.run(self._middleware)
        return exchange

    async def _identify(self, method: Method, caller: Caller) -> Identity:
        """Who makes a call; MXNetError where its token will not do, or where it has two."""
        check_single(caller.headers)
        if not method.route.token:
            return NOBODY
        identity = await self._middleware.caller(caller.authorization, caller.address)
        permit(identity, method.route)
        return identity

    async def _read(self, owner: str, read: Callable[[], Awaitable[Any]]) -> bytes:
        """The message of a call, which counts as a request of its owner's meanwhile.

        Raises:
            DeadlineError: it does not come.
            QuotaError, NotReadyError: there are too many.
        """
        stall_s = self._settings.stall_s
        reading = self._reading.get(owner)
        if reading is None:
            reading = self._reading[owner] = asyncio.Semaphore(self._at_a_time)
        self._middleware.admit(owner)
        try:
            async with asyncio.timeout(stall_s), reading:
                message = await read()
        except TimeoutError:
            raise DeadlineError(
                f"the message: expected it within {stall_s:g} s, got a part: send it faster, or start the server with "
                "a larger OPBOX_STALL_S"
            ) from None
        finally:
            self._middleware.leave(owner)
        if message is grpc.aio.EOF:
            raise asyncio.CancelledError  # the call was cancelled before it had a message
        data: bytes = message
        return data

    def _streaming(self, method: Method) -> Callable[[Any, Any], Awaitable[None]]:
        async def stream(messages: Any, context: Any) -> None:
            metadata = context.invocation_metadata()
            caller = Caller.of(metadata, context.peer())
            try:
                identity = await self._identify(method, caller)
                self._check_streams(identity.owner)
            except MXNetError as error:
                exchange = GrpcExchange(method, RestRequest(method.route, {}), caller, NOBODY, error)
                await exchange.run(self._middleware)
                await context.abort(status_code(exchange.status, exchange.kind), _details(exchange.error))
            self._streams[identity.owner] += 1
            try:
                await self._answer_all(method, caller, context, STREAM_ERRORS in (metadata or ()))
            finally:
                self._streams[identity.owner] -= 1
                if not self._streams[identity.owner]:
                    del self._streams[identity.owner]

        return stream

    def _check_streams(self, owner: str) -> None:
        limit = min(self._settings.max_in_flight_per_owner, self._at_a_time)
        if self._streams[owner] >= limit:
            raise QuotaError(f"streams: expected at most {limit} of an owner at a time: end one first")
        if self._middleware.server.stopping:
            raise NotReadyError(_STOPPING)

    async def _answer_all(self, method: Method, caller: Caller, context: Any, ends_by_error: bool) -> None:
        """Answer the messages of a stream in their order; some are under way ahead of the one that is answered next."""
        exchanges: asyncio.Queue[asyncio.Task[GrpcExchange] | None] = asyncio.Queue()
        ahead = asyncio.Semaphore(AHEAD)
        running: set[asyncio.Task[GrpcExchange]] = set()

        async def read_all() -> None:
            try:
                while True:
                    await ahead.acquire()
                    message = await context.read()
                    if message is grpc.aio.EOF:
                        return
                    task = asyncio.create_task(self._exchange(method, caller, _already(message)))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    exchanges.put_nowait(task)
            finally:
                exchanges.put_nowait(None)

        reader = asyncio.create_task(read_all())
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        try:
            while (task := await exchanges.get()) is not None:
                exchange = await task
                ahead.release()
                if exchange.message is not None:
                    await context.write(of_stream(exchange.message))
                elif ends_by_error:
                    await context.abort(status_code(exchange.status, exchange.kind), _details(exchange.error))
                else:
                    await context.write(stream_error(exchange.error, exchange.id))
            if self._middleware.server.stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)
        finally:
            for left in (reader, *running):
                left.cancel()


async def _request_of(method: Method, message: bytes) -> RestRequest:
    if len(message) >= LARGE:
        return await asyncio.to_thread(method.read, message)
    return method.read(message)


def _already(message: bytes) -> Callable[[], Awaitable[bytes]]:
    """Reads a message that has come."""

    async def read() -> bytes:
        return message

    return read


def _details(sentence: str) -> str:
    """A sentence that is short enough for a status."""
    if len(quote(sentence)) <= DETAILS_BYTES:
        return sentence
    while len(quote(sentence)) > DETAILS_BYTES - 9:
        sentence = sentence[: len(sentence) * 9 // 10]
    return sentence + "…"
