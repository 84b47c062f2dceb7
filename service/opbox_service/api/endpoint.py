"""The endpoint of all calls to the engine: raw ASGI, so that a tensor's bytes are copied as little as may be.

The body is received straight into the buffer that the worker maps; the answer is sent from the buffer that the worker
wrote.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from opbox_protocol.errors import CancelledError, MXNetError, NotReadyError, QuotaError

from ..accounting.accounts import USUAL_URGENCY
from ..accounting.books import Books
from ..buffers import INLINE
from ..carriers import RawRequest, RawResponse
from ..memory_shares import buffer_bytes
from ..routes.route import RunsOn
from ..settings import Settings
from .body_parts import BodyPart, BodyParts, StalePartError, part_of
from .encodings import (
    WORTH_ZSTD,
    asked_coding,
    coding_of,
    deflated,
    prefers_zstd,
    shrunk,
)
from .http_protocol import RECEIVE_INTO
from .kept_answers import KeptAnswers, NumberedCall
from .later import Later, received, still_running, wait_of
from .metrics import Metrics
from .own_answers import ApiState, OwnAnswers, check_local
from .receiving import (
    HEADER_LENGTH,
    content_length,
    drop_body,
    header_length,
    is_plain,
    non_finite,
    receive_into,
    receive_small,
)
from .request_bodies import RequestBodies
from .request_context import FORWARDED, Receive, RequestContext, Scope, Send
from .sending import (
    WORTH_COMPRESSING,
    asks_for_graph,
    level_of,
    send_answer,
    send_at_once,
    send_compressed,
    send_stream,
    sentence,
    takes_gzip,
)

__all__ = ["Bodies", "Endpoint"]

WATCHED_S = 0.05
"""Seconds after which the server checks whether the client is still connected."""

QUICK = 1 << 20
"""Bodies of up to this many bytes may be answered by the loop's own thread, if the model's runs are quick."""
DROPPED = 1 << 20
"""Bodies up to this many bytes are read to their end where they are not needed."""

INFERENCE_PROTOCOL = "/v2"
"""Paths that begin so have answers that are compressed only for clients that ask for one coding alone: libraries list
all that they know in every request, and Triton's asynchronous client cannot read what comes then."""

_URGENCY = re.compile(rb"(?:^|[,\s])u=([0-7])(?![0-9])")


class Endpoint:
    """Reads a request, makes the call, sends the answer.

    Args:
        server: the API process, and its workers.
        settings: the limits.
        metrics: counts commands.
        books: the quotas of owners.

    Attributes:
        bytes, bytes_of_owner: of bodies, unread answers and kept ones, of all owners and by owner.
        most_bytes: how many they may be.
        answers: those of numbered calls.
        parts: bodies that come in parts.
    """

    def __init__(self, server: ApiState, settings: Settings, metrics: Metrics, books: Books) -> None:
        self._books = books
        self._server = server
        self._pool = server.pool
        self._settings = settings
        self._metrics = metrics
        self._under_way: dict[tuple[str, str], RawRequest] = {}
        self._may_be_at_once = settings.isolation == "none"
        self._own = OwnAnswers(server, settings)
        self._bodies = RequestBodies(server, settings)
        self.answers = KeptAnswers(self._most_kept, self.count)
        self.parts = BodyParts(self.count)
        self.bytes_of_owner: dict[str, int] = {}
        self.bytes = 0
        self.most_bytes = buffer_bytes(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request whose `scope["opbox"]` is its RequestContext, which has a route.

        Raises:
            MXNetError: the request was refused, or the call not brought to an end.
            Disconnected: the client is gone.
        """
        context: RequestContext = scope["opbox"]
        headers, identity, route = context.headers, context.identity, context.route
        assert route is not None
        if route.local:
            check_local(scope)
        request = RawRequest(
            route, context.parameters, scope["path"], identity.owner, identity.scopes, context.request_id
        )
        if context.trace is not None:
            request.trace = context.trace.traceparent
        at_once: RawResponse | None = None
        may_be = self._may_be_at_once and route.runs_on is RunsOn.MODEL_WORKER and not request.trace
        may_be = may_be and is_plain(headers)
        if may_be:
            at_once, receive = await self._call_at_once(request, context, receive)
        if at_once is not None:
            response = at_once
            plain = b"accept-encoding" not in headers or asked_coding(headers) is None
            if response.status == 200 and plain and send_at_once(context, response, send):
                context.status, context.sent = response.status, response.size
                return
        elif route.runs_on is RunsOn.API:
            response = self._own.at_once(request)
            context.whole = True
        elif route.runs_on is RunsOn.API_THREAD:
            response = await asyncio.to_thread(self._own.at_once, request)
            context.whole = True
        else:
            length = content_length(headers)
            name = self.answers.name(headers)
            part = part_of(headers, length, name)
            total = length if part is None else part.total
            self._bodies.check_length(total)
            packed = coding_of(headers)
            request.header_length = header_length(headers, None if packed is not None else total, self._settings)
            accept = headers.get(b"accept", b"")
            request.binary = request.header_length is not None or b"application/octet-stream" in accept
            request.non_finite = non_finite(accept)
            self.answers.acknowledge(identity.owner, headers)
            call = None if name is None else self.answers.find(identity.owner, name, scope["path"])
            if route.method == "POST" and call is None:
                self._books.check_time(identity.owner)
            account = self._books.accounts.of(identity.owner)
            request.weight = account.weight if identity.weight is None else identity.weight
            urgency = _URGENCY.search(headers[b"priority"]) if b"priority" in headers else None
            request.interactive = (account.urgency if urgency is None else int(urgency[1])) <= USUAL_URGENCY
            into = scope.get("extensions", {}).get(RECEIVE_INTO, receive_into)
            body = self.bodies(identity.owner)
            take = body.take
            later = None if name is None else Later(context, name, wait_of(headers), send, self._settings.stall_s)
            try:
                if later is not None and call is not None:
                    await self._drop_body(length, headers, receive, context)
                    context.since = time.perf_counter()
                    response = await self._answer_again(call, request, receive, later)
                elif later is not None and part is not None:
                    with self._model_of(request):
                        response = await self._part(request, part, receive, into, body, packed, later)
                else:
                    take(length or 0)
                    try:
                        with self._model_of(request):
                            request.body = await self._bodies.receive(request, length, headers, receive, into, take)
                            context.whole, context.since = True, time.perf_counter()
                            context.received = len(request.view)
                            if context.trace is not None:
                                context.trace.received()
                            await self._bodies.unpack(request, packed, take)
                            quick = self._quick_answer(request) if may_be else None
                            response = await self._call(request, receive, later) if quick is None else quick
                    finally:
                        body.release()
            except MXNetError:
                if later is None or not await later.end():
                    raise
                return
            if route.ends_session and response.status < 400:
                self.parts.end_session(context.parameters["id"])
            if later is not None and await later.end():
                response.release()
                return
        size = response.size
        if context.trace is not None:
            context.trace.answered(response.stages)
        try:
            self.count(identity.owner, size)
            if response.commands:
                self._metrics.count_commands(response.commands)
            context.status, context.sent = response.status, size
            if scope.get(FORWARDED) is not None:
                if response.status >= 400:
                    context.error, context.problem = sentence(response.body), response.problem
                await scope[FORWARDED].take(context, response)
                return
            if response.stream is not None:
                if context.head:
                    await send_answer(context, replace(response, stream=None), send, self._settings.stall_s)
                    return
                await send_stream(context, response, receive, send, self._settings.stall_s)
                return
            if response.status >= 400:
                context.error = sentence(response.body)
                context.problem = response.problem
                context.expected = response.status == 404 and route.method == "POST" and asks_for_graph(response.body)
            elif size >= WORTH_ZSTD and prefers_zstd(headers):
                compressed = await shrunk(response)
                await send_answer(context, response, send, self._settings.stall_s, compressed)
                return
            elif size >= WORTH_COMPRESSING and route.path.startswith(INFERENCE_PROTOCOL):
                coding = asked_coding(headers)
                if coding is not None and response.status == 200:
                    compressed = await deflated(response, coding, level_of(size))
                    await send_answer(context, response, send, self._settings.stall_s, compressed, coding)
                    return
            elif size >= WORTH_COMPRESSING and response.header_length is None and takes_gzip(headers):
                await send_compressed(context, response, send, self._settings.stall_s)
                return
            await send_answer(context, response, send, self._settings.stall_s)
        finally:
            self.count(identity.owner, -size)
            response.release()

    def bodies(self, owner: str) -> Bodies:
        """Counts bytes of an owner's that are not in memory yet."""
        return Bodies(self, owner, self._books.accounts.of(owner).buffer_bytes)

    def count(self, owner: str, nbytes: int) -> None:
        """Add `nbytes` (or subtract, if negative) to an owner's bodies and unread answers."""
        if nbytes:
            self.bytes += nbytes
            total = self.bytes_of_owner.get(owner, 0) + nbytes
            if total:
                self.bytes_of_owner[owner] = total
            else:
                del self.bytes_of_owner[owner]

    def _most_kept(self, owner: str) -> int:
        """Maximum bytes of an owner's kept answers."""
        return min(self._settings.max_kept_bytes, self._books.accounts.of(owner).buffer_bytes // 4)

    async def _drop_body(
        self, length: int | None, headers: dict[bytes, bytes], receive: Receive, context: RequestContext
    ) -> None:
        """Drop the body of a call that has come before; a large one is answered first, and its connection ends."""
        if length == 0 or (length is None and b"transfer-encoding" not in headers):
            context.whole = True
        elif length is None or length > DROPPED:
            context.last = True
        else:
            context.received = await drop_body(receive)
            context.whole = True

    async def _call_at_once(
        self, request: RawRequest, context: RequestContext, receive: Receive
    ) -> tuple[RawResponse | None, Receive]:
        """The answer of a small call that this thread makes; or None, and what receives the call's body again."""
        headers, owner, settings = context.headers, request.owner, self._settings
        length, head = int(headers[b"content-length"]), int(headers[HEADER_LENGTH])
        if not head <= length <= min(INLINE, settings.max_body_bytes) or head > settings.max_header_bytes:
            return None, receive
        self._books.check_time(owner)
        account, weight = self._books.accounts.of(owner), context.identity.weight
        request.weight = account.weight if weight is None else weight
        request.interactive = account.urgency <= USUAL_URGENCY
        body = self.bodies(owner)
        body.take(length)
        try:
            content = request.body = await receive_small(receive, length)
        finally:
            body.release()
        context.whole, context.since, context.received = True, time.perf_counter(), length
        request.header_length, request.binary = head, True
        request.model = self._server.served_models.find(request)
        response = self._pool.call_at_once(request)
        if response is not None:
            return response, receive
        return None, _replayed(content, receive)

    def _quick_answer(self, request: RawRequest) -> RawResponse | None:
        """The answer of a call in a buffer that this thread makes, where its runs are quick; else None."""
        if len(request.view) > QUICK or request.shared_outputs:
            return None
        try:
            response = self._pool.call_at_once(request)
        except BaseException:
            request.release()
            raise
        if response is not None:
            request.release()
        return response

    async def _part(
        self,
        request: RawRequest,
        part: BodyPart,
        receive: Receive,
        into: Callable[[memoryview, Receive], Awaitable[None]],
        bytes_of_request: Bodies,
        packed: str | None,
        later: Later,
    ) -> RawResponse:
        """Receive a part of a body; the last one makes the call."""
        name, context = later.name, later.context
        body = self.parts.find(request, name, part)
        if body is None and part.length and not part.first:
            bytes_of_request.take(part.total)
            body = self.parts.begin(request, name, part.total, lambda: self._pool.lease(request, part.total))
        came = False
        try:
            if body is not None and part.length and part.first <= body.size:
                came = await self.parts.fill(body, part, receive, into)
            if not came:
                await self._drop_body(part.length, context.headers, receive, context)
        except StalePartError:
            context.last = True
        if body is None or not came:
            call = self.answers.find(request.owner, name, request.path)
            if call is not None:  # another connection has made it meanwhile
                return await self._answer_again(call, request, receive, later)
            return received(0 if body is None else body.size)
        context.whole, context.received = True, part.length
        if body.size < body.total:
            return received(body.size)
        self.parts.take(body)
        counted = bytes_of_request.counted
        try:
            request.body, request.worker = body.lease, body.worker
            context.since = time.perf_counter()
            if context.trace is not None:
                context.trace.received()
            await self._bodies.unpack(request, packed, bytes_of_request.take)
            return await self._call(request, receive, later)
        finally:
            self.count(request.owner, -body.total - (bytes_of_request.counted - counted))

    async def _call(self, request: RawRequest, receive: Receive, later: Later | None) -> RawResponse:
        """Make a call; one with a number runs once, however often it comes."""
        if later is None:
            return await self._answer(request, receive)
        name = later.name
        call = self.answers.find(request.owner, name, request.path)
        if call is not None:  # it has come on another connection meanwhile
            request.release()
            return await self._answer_again(call, request, receive, later)
        call = self.answers.begin(request.owner, name, request.path)
        try:
            response = await self._answer(request, receive, call, later)
        except BaseException as error:
            self.answers.fail(request.owner, name, call, error)
            raise
        return self.answers.finish(request.owner, name, call, response)

    async def _answer_again(
        self, call: NumberedCall, request: RawRequest, receive: Receive, later: Later
    ) -> RawResponse:
        """The answer of a call that has come before, when it is there, or that it still runs."""
        call.join()
        watching = asyncio.create_task(_watch(receive, call.leave))
        try:
            async with asyncio.timeout(later.wait_s):
                return await call.answer()
        except TimeoutError:
            if not watching.done():  # which would have done so
                call.leave()
            return still_running(later.name)
        except asyncio.CancelledError:
            raise _stopped(request) from None
        finally:
            watching.cancel()

    async def _answer(
        self,
        request: RawRequest,
        receive: Receive,
        call: NumberedCall | None = None,
        later: Later | None = None,
    ) -> RawResponse:
        """The worker's answer. A client that goes away meanwhile, or another request, stops the work."""
        key = (request.owner, request.request_id)
        self._under_way[key] = request
        loop = asyncio.get_running_loop()
        watching: list[asyncio.Task[None]] = []

        def cancel() -> None:
            request.cancel(CancelledError(f"{request}: its client went away"))

        gone = cancel
        if call is not None:
            call.join()
            call.cancel_by(cancel)
            gone = call.leave

        def watch() -> None:
            watching.append(loop.create_task(_watch(receive, gone)))
            if later is not None:
                later.start(WATCHED_S)

        # A task costs as much as a small call, so that only those get one that take a while.
        timer = loop.call_later(WATCHED_S, watch)
        try:
            if request.route.runs_on is RunsOn.API_WITH_BODY:
                return await self._own.from_body(request)
            response = await self._pool.call(request)
            return response if not request.shared_outputs else await self._bodies.scatter(request, response)
        except asyncio.CancelledError:  # the server stops, and has waited for long enough
            error = _stopped(request)
            request.cancel(error)
            raise error from None
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()
            if self._under_way.get(key) is request:
                del self._under_way[key]

    def cancel(self, owner: str, request_id: str) -> bool:
        """Stop an owner's request; return False if the id is unknown."""
        request = self._under_way.get((owner, request_id))
        if request is None:
            return False
        request.cancel(CancelledError(f"{request}: cancelled by request"))
        return True

    def _model_of(self, request: RawRequest) -> AbstractContextManager[None]:
        """Keep the model that a request is for, while the request is under way."""
        if request.route.runs_on is not RunsOn.MODEL_WORKER:
            return nullcontext()
        return self._server.served_models.using(request)


class Bodies:
    """Counts a request's body as its owner's.

    Args:
        endpoint: has the sums.
        owner: whose it is.
        limit: of the owner's bodies and unread answers.

    Attributes:
        counted: bytes.
    """

    __slots__ = ("_endpoint", "_limit", "_owner", "counted")

    def __init__(self, endpoint: Endpoint, owner: str, limit: int) -> None:
        self._endpoint = endpoint
        self._owner = owner
        # One owner alone leaves some to the others.
        self._limit = min(limit, endpoint.most_bytes * 3 // 4)
        self.counted = 0

    @property
    def _used(self) -> int:
        return self._endpoint.bytes_of_owner.get(self._owner, 0)

    def take(self, nbytes: int) -> None:
        """Count `nbytes` more.

        Raises:
            QuotaError: the owner's bodies and answers are too many.
            NotReadyError: those of all owners are.
        """
        if not nbytes:  # without a body it may be what ends the others
            return
        endpoint = self._endpoint
        if self._used + nbytes > self._limit:
            endpoint.answers.make_place(self._owner, self._used + nbytes - self._limit)
        if endpoint.bytes + nbytes > endpoint.most_bytes:
            endpoint.answers.make_place(None, endpoint.bytes + nbytes - endpoint.most_bytes)
        used = self._used
        if used + nbytes > self._limit:
            raise QuotaError(
                f"transfer buffers: expected at most {self._limit} bytes of an owner's bodies and unread answers, got "
                f"{used} and {nbytes} more: read the answers, or wait for other requests to end"
            )
        if endpoint.bytes + nbytes > endpoint.most_bytes:
            raise NotReadyError(
                f"transfer buffers: expected at most {endpoint.most_bytes} bytes of all bodies and unread answers, "
                f"got {endpoint.bytes} and {nbytes} more: try again in a moment"
            )
        endpoint.count(self._owner, nbytes)
        self.counted += nbytes

    def release(self) -> None:
        """Count the bytes no more. Calling it twice is safe."""
        counted, self.counted = self.counted, 0
        self._endpoint.count(self._owner, -counted)


def _replayed(content: bytes, receive: Receive) -> Receive:
    """A `receive` that brings a body once more, before what follows it."""
    bodies = [content]

    async def again() -> Any:
        return {"type": "http.request", "body": bodies.pop(), "more_body": False} if bodies else await receive()

    return again


def _stopped(request: RawRequest) -> NotReadyError:
    return NotReadyError(f"{request}: expected an answer before the server stopped, got none: try again")


async def _watch(receive: Receive, gone: Callable[[], None]) -> None:
    """Call `gone` when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()
