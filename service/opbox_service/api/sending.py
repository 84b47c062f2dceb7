"""Answers sent: at once, compressed, in pieces that a client may take its time to read, or as a stream."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import re
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from opbox_protocol.errors import AuthenticationError
from opbox_protocol.wire import HEADER_LENGTH
from opbox_protocol.zstd import CODING

from ..carriers import RawResponse
from ..worker.code_answers import LARGEST_ERROR
from .request_context import Disconnected, Receive, RequestContext, Send

__all__ = [
    "WORTH_COMPRESSING",
    "asks_for_graph",
    "level_of",
    "send_answer",
    "send_at_once",
    "send_compressed",
    "send_stream",
    "sentence",
    "takes_gzip",
]

PIECE = 8 << 20
"""Bytes of an answer that a client must read within `stall_s` seconds."""
TURN = 1 << 20
"""Bytes of it that are written at a time, before others have their turn: a write is not interrupted, and a client that
reads as fast as it is written to is not waited for."""
COPIED = 1 << 17
"""Answers up to this many bytes are copied and sent at once."""

WORTH_COMPRESSING = 4096
"""Answers of at least this many bytes are compressed if the client accepts gzip."""
WORTH_HASTE = 1 << 16
"""Answers of at least this many bytes are compressed at the fastest level."""
LONGEST_RETRY_S = 60.0
"""Maximum seconds in `Retry-After`."""

_HASH = re.compile(r"[0-9a-f]{64}")
_HEADER_LENGTH = HEADER_LENGTH.lower().encode()


def takes_gzip(headers: dict[bytes, bytes]) -> bool:
    """Return whether Accept-Encoding accepts gzip."""
    for coding in headers.get(b"accept-encoding", b"").lower().split(b","):
        name, _, quality = coding.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.strip() not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def sentence(body: memoryview | bytes) -> str:
    """Return the message of an error's JSON object, for the log."""
    if len(body) > LARGEST_ERROR:
        return "an answer that is larger than any error"
    try:
        return str(json.loads(bytes(body))["error"])
    except (ValueError, LookupError, TypeError, RecursionError):  # a process that runs somebody's code may write this
        return "an answer that is no error's JSON object"


def asks_for_graph(body: memoryview | bytes) -> bool:
    """True if an error's JSON object says that a graph is to be sent, which clients name by its hash before that."""
    try:
        return len(body) <= LARGEST_ERROR and _HASH.fullmatch(json.loads(bytes(body))["detail"]["graph"]) is not None
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def level_of(size: int) -> int:
    """The level of compression for an answer of so many bytes."""
    return 6 if size < WORTH_HASTE else 1


async def send_compressed(context: RequestContext, response: RawResponse, send: Send, stall_s: float) -> None:
    """Send JSON or text by gzip; it is made by a thread, as other requests are to have their turn meanwhile."""
    body = await asyncio.to_thread(gzip.compress, response.body, level_of(response.size), mtime=0)
    context.sent = len(body)
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", context.request_id.encode()),
        (b"content-type", response.content_type.encode()),
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
        *response.headers,
    ]
    context.started = True
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await _send_body(context, body, send, stall_s)


async def send_stream(
    context: RequestContext, response: RawResponse, receive: Receive, send: Send, stall_s: float
) -> None:
    """Send a stream until it ends, the client goes away or does not read, or its token expires."""
    stream = response.stream
    assert stream is not None
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"x-request-id", context.request_id.encode()),
        (b"x-accel-buffering", b"no"),  # nginx would collect it
        *response.headers,
    ]
    context.started = context.streamed = True
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for piece in stream:
            if gone.done() or not _still_known(context):
                break
            context.sent += len(piece)
            async with asyncio.timeout(stall_s):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        raise Disconnected from None
    finally:
        gone.cancel()
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _still_known(context: RequestContext) -> bool:
    """Return whether the token that a stream was asked for with is one still."""
    try:
        if context.identify_again is not None:
            context.identify_again(context.headers.get(b"authorization"))
    except AuthenticationError:
        return False
    return True


async def _disconnect(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_answer(
    context: RequestContext,
    response: RawResponse,
    send: Send,
    stall_s: float,
    compressed: bytes | None = None,
    coding: str = CODING,
) -> None:
    """Send an answer, in place of its body the same compressed with `coding` if that is given."""
    if compressed is None and send_at_once(context, response, send):
        return
    body = response.body if compressed is None else compressed
    size = len(body)
    headers = [
        (b"content-length", b"%d" % size),
        (b"x-request-id", context.request_id.encode()),
        *response.headers,
    ]
    if response.header_length is None:
        headers.append((b"content-type", response.content_type.encode()))
    else:
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((_HEADER_LENGTH, b"%d" % response.header_length))
    if compressed is not None:
        headers += [(b"content-encoding", coding.encode()), (b"vary", b"Accept-Encoding")]
        context.sent = size
    context.started = True
    if context.since:
        headers.append((b"server-timing", b"app;dur=%.3f" % ((time.perf_counter() - context.since) * 1e3)))
    if context.last:
        headers.append((b"connection", b"close"))
    wait_s = 0.0
    if response.queue is not None:
        before, wait_s = response.queue
        headers += [(b"opbox-calls-before", b"%d" % before), (b"opbox-wait", b"%.3f" % wait_s)]
    if response.status in (429, 503):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(min(wait_s, LONGEST_RETRY_S)))))
    if response.status >= 400 and size <= LARGEST_ERROR:
        body = _with_ids(body, context.ids)
        size = len(body)
        headers[0] = (b"content-length", b"%d" % size)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await _send_body(context, body, send, stall_s)


def send_at_once(context: RequestContext, response: RawResponse, send: Send) -> bool:
    """Send a usual small answer in one write; return False for any other."""
    size, length = response.size, response.header_length
    if size > COPIED or response.status != 200 or response.headers or response.queue is not None:
        return False
    send_whole = context.send_whole
    if send_whole is None or context.last or (length is None and response.content_type != "application/json"):
        return False
    media_type = b"application/json"
    if length is not None:
        media_type = b"application/octet-stream\r\n%b: %d" % (_HEADER_LENGTH, length)
    since = context.since
    timing = b"server-timing: app;dur=%.3f\r\n" % ((time.perf_counter() - since) * 1e3) if since else b""
    headers = b"content-length: %d\r\nx-request-id: %b\r\ncontent-type: %b\r\n%b" % (
        size,
        context.request_id.encode(),
        media_type,
        timing,
    )
    context.started = True
    return send_whole(send, 200, headers, b"".join(response.parts))


async def _send_body(context: RequestContext, body: memoryview | bytes, send: Send, stall_s: float) -> None:
    """Send the body of an answer that has been begun, at once where it is small."""
    if len(body) <= COPIED:
        await send({"type": "http.response.body", "body": bytes(body)})
        return
    await _send_whole(context.transport, memoryview(body), send, stall_s)
    await send({"type": "http.response.body", "body": b""})


async def _send_whole(transport: asyncio.WriteTransport | None, body: memoryview, send: Send, stall_s: float) -> None:
    """Send a body from a buffer that others use next: when this returns, the server holds none of it any more.

    Raises:
        Disconnected: the client has gone away, or has not read PIECE bytes in `stall_s` seconds.
    """
    pieces: list[Any] = [body[at : at + TURN] for at in range(0, len(body), TURN)]
    # TLS copies what it sends.
    if transport is None or transport.get_extra_info("sslcontext") is not None:
        try:
            for piece in pieces:
                async with asyncio.timeout(stall_s):
                    await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
        except TimeoutError:
            raise Disconnected from None
        return
    loop = asyncio.get_running_loop()
    if transport.is_closing():
        raise Disconnected
    transport.set_write_buffer_limits(0)  # what cannot be written at once is waited for by whatever is sent next
    stalled = loop.call_later(stall_s, transport.abort)
    sent = 0
    try:
        for piece in (*pieces, b""):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if transport.is_closing():
                # What is sent to nobody is taken at once: a thousand pieces of it would be one turn of the loop. What
                # has not been written yet must not go out later.
                transport.abort()
                raise Disconnected
            sent += len(piece)
            if sent % PIECE == 0:
                stalled.cancel()
                stalled = loop.call_later(stall_s, transport.abort)
            if sent % TURN == 0:
                await asyncio.sleep(0)
    finally:
        stalled.cancel()
        if not transport.is_closing():  # one that is closed has none to set, and says so by an exception
            transport.set_write_buffer_limits()


def _with_ids(body: memoryview | bytes, ids: Mapping[str, str]) -> bytes:
    """Return an error's JSON object with the ids of the request added."""
    return bytes(body).rstrip()[:-1] + b"," + json.dumps(dict(ids)).encode()[1:]
