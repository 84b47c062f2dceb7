"""RequestBodies: receives the bodies of calls, unpacks them, and puts tensors of shared memory in their place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from opbox_protocol.errors import LimitError
from opbox_protocol.zstd import CODING as ZSTD_CODING

from ..buffers import INLINE, Lease
from ..carriers import RawRequest, RawResponse
from ..codec import limits_of
from ..models.shared_tensors import GatheredRequest, gathered, names_regions, scattered
from ..routes.route import RunsOn
from ..settings import Settings
from .encodings import content_size, decompress, in_thread
from .inflating import inflate
from .own_answers import ApiState
from .receiving import copy, receive_small
from .request_context import Disconnected, Receive

__all__ = ["RequestBodies"]

SEARCHED_AT_ONCE = 1 << 20
"""JSON of up to this many bytes is searched for regions by the loop's own thread."""
COPIED_AT_ONCE = 1 << 18
"""Tensors of up to this many bytes are copied to and from shared memory by the loop's own thread."""


class RequestBodies:
    """Receives the bodies of calls into memory that their worker reads.

    Args:
        server: the API process, with its workers and shared memory.
        settings: the limits.
    """

    def __init__(self, server: ApiState, settings: Settings) -> None:
        self._server = server
        self._pool = server.pool
        self._settings = settings
        self._limits = limits_of(settings)

    def check_length(self, length: int | None) -> None:
        """Raise LimitError for a body that is larger than any owner may send."""
        limit = self._settings.max_body_bytes
        if length is not None and length > limit:
            raise LimitError(
                f"body: expected at most {limit} bytes, got {length}: send less at a time, or start the server with a "
                "larger OPBOX_MAX_BODY_BYTES"
            )

    async def receive(
        self,
        request: RawRequest,
        length: int | None,
        headers: dict[bytes, bytes],
        receive: Receive,
        into: Callable[[memoryview, Receive], Awaitable[None]],
        take: Callable[[int], None],
    ) -> Lease | bytes:
        """Receive the body; one of unstated length is counted by `take` as it arrives."""
        if length is None:
            return await self._chunked(request, receive, take) if b"transfer-encoding" in headers else b""
        if length == 0:
            return b""
        if length <= INLINE:
            return await receive_small(receive, length)
        lease = self._pool.lease(request, length)
        try:
            await into(lease.view, receive)
        except BaseException:
            lease.release()
            raise
        return lease

    async def _chunked(self, request: RawRequest, receive: Receive, take: Callable[[int], None]) -> Lease | bytes:
        """A body that comes in chunks, in a buffer that is replaced by one of twice the size when it is full."""
        limit = self._settings.max_body_bytes
        lease = self._pool.lease(request, 2 * INLINE)
        size = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk, more = message.get("body", b""), message.get("more_body", False)
                end = size + len(chunk)
                if end > limit:
                    raise LimitError(f"body: expected at most {limit} bytes, got more")
                take(len(chunk))
                if end > len(lease.view):
                    full, lease = lease, self._pool.lease(request, min(limit, 2 * end))
                    try:
                        await copy(full.view[:size], lease.view)
                    finally:
                        full.release()
                lease.view[size:end] = chunk
                size = end
        except BaseException:
            lease.release()
            raise
        if size <= INLINE:
            body = bytes(lease.view[:size])
            lease.release()
            return body
        lease.view = lease.view[:size]
        return lease

    async def unpack(self, request: RawRequest, coding: str | None, take: Callable[[int], None]) -> None:
        """Put the content of a compressed body, and tensors in shared memory, into the request's body."""
        if coding is not None:
            await self._decompress(request, coding, take)
        if request.route.runs_on is RunsOn.MODEL_WORKER and request.route.tensors:
            await self._gather(request, take)

    async def _gather(self, request: RawRequest, take: Callable[[int], None]) -> None:
        """Read tensors in shared memory; `take` counts them as the owner's."""
        memory, view, length = self._server.served_models.shared_memory, request.view, request.header_length
        text = view if length is None else view[:length]
        if len(text) <= SEARCHED_AT_ONCE and not names_regions(text):
            return
        most = self._settings.max_json_bytes if length is None else self._limits.header_bytes
        limits = replace(self._limits, header_bytes=most)

        def plan() -> GatheredRequest | None:
            return gathered(view, length, limits, memory, request.owner)

        try:
            new = plan() if len(text) <= INLINE else await in_thread(plan)
            if new is None:
                return
            self.check_length(new.size)
            take(new.size)
            content = self._pool.lease(request, new.size)
        except BaseException:
            request.release()
            raise
        try:
            if new.size <= COPIED_AT_ONCE:
                new.write_to(content.view)
            else:
                await in_thread(lambda: new.write_to(content.view))
        except BaseException:
            content.release()
            raise
        finally:
            request.release()
        request.body, request.header_length, request.binary = content, len(new.head), True
        request.shared_outputs = new.outputs

    async def scatter(self, request: RawRequest, response: RawResponse) -> RawResponse:
        """Write outputs to shared memory that the request wants there."""
        try:
            if response.size <= COPIED_AT_ONCE:
                return scattered(response, request.shared_outputs)
            return await in_thread(lambda: scattered(response, request.shared_outputs))
        except BaseException:
            response.release()
            raise

    async def _decompress(self, request: RawRequest, coding: str, take: Callable[[int], None]) -> None:
        """Put a compressed body's content in its place; `take` counts it as the owner's."""
        limit = self._settings.max_body_bytes
        try:
            if coding != ZSTD_CODING:
                content = await inflate(request.view, coding, limit, lambda n: self._pool.lease(request, n), take)
            else:
                content = await self._unpacked(request, take)
        finally:
            request.release()
        request.body = content

    async def _unpacked(self, request: RawRequest, take: Callable[[int], None]) -> Lease:
        """The content of a body that is a zstd frame."""
        size = content_size(request.view, self._settings.max_body_bytes)
        take(size)
        content = self._pool.lease(request, size)
        try:
            await decompress(request.view, content.view)
        except BaseException:
            content.release()
            raise
        return content
