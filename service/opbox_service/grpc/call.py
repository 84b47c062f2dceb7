"""GrpcCall: one call by gRPC: the messages that come on its stream of HTTP/2, and those that are written to it.

The client may send as much as the stream's window has. That is WINDOW until a message's size is known, and its owner
may send so much; then all of the message. So what nobody has asked for is never in memory.
"""

from __future__ import annotations

import asyncio
import mmap
import re
import struct
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

from h2.connection import H2Connection
from h2.errors import ErrorCodes

from opbox_protocol.errors import BadRequestError, LimitError

from ..api.request_context import Disconnected
from ..api.sending import PIECE, TURN
from .statuses import StatusCode

__all__ = ["WINDOW", "GrpcCall", "GrpcLink", "Message", "fresh_memory"]

Message = bytes | memoryview
"""A message as it came; a view of memory that nobody else has."""
WINDOW = (1 << 16) - 1
"""Bytes that a client may send before the server asks for more: HTTP/2's initial window."""
WORTH_UPDATE = WINDOW // 2
"""The window is opened further when fewer bytes of it are left."""
FLUSHED = 1 << 18
"""Bytes of an answer to write at a time."""
MAX_FRAME_BYTES = 1 << 16
DETAILS_BYTES = 4096
"""The longest sentence of a status, as it travels: clients refuse an answer whose metadata have 8 KiB."""

_PREFIX = struct.Struct(">BI")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_HEAD = [(":status", "200"), ("content-type", "application/grpc")]
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""Characters that a status's sentence has as they are."""


class GrpcLink(Protocol):
    """The connection of a call.

    Attributes:
        paused: whether the client does not read as fast as it is written to.
        stall_s: seconds in which it must read a piece of an answer.
    """

    paused: bool
    stall_s: float

    @property
    def h2(self) -> H2Connection:
        """Its state of HTTP/2."""

    def flush(self) -> None:
        """Write what is to be sent."""

    def wrote_data(self) -> None:
        """Note a data frame that is written to the client."""

    def accept(self, call: GrpcCall) -> None:
        """Note that a call's token has been accepted."""

    def end(self, call: GrpcCall, stream: int, code: ErrorCodes) -> None:
        """Forget a call, which has been answered (NO_ERROR) or given up."""


class GrpcCall:
    """One call.

    Args:
        link: its connection.
        stream_id: of its stream.
        headers: of the request.
        address: of the client.

    Attributes:
        path: the service and method.
        metadata: the headers as they came; one may be there twice.
        headers: the same by name.
        address: as above.
        timeout_s: the client's; None where it has none.
        gone: whether nobody reads its answer any more.
    """

    def __init__(self, link: GrpcLink, stream_id: int, headers: Sequence[tuple[bytes, bytes]], address: str) -> None:
        self._link = link
        self._stream = stream_id
        self.metadata = headers
        self.headers = dict(headers)
        self.address = address
        self.path = self.headers.get(b":path", b"").decode("latin-1")
        timeout = _TIMEOUT.fullmatch(self.headers.get(b"grpc-timeout", b""))
        self.timeout_s = None if timeout is None else int(timeout[1]) * _SECONDS[timeout[2]]
        self.gone = False
        self._ended = self._begun = self._left = False
        self._came: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._buffer = bytearray()  # what has come and is not of the message that is read
        self._target: memoryview | None = None  # the message that is read, and how much of it is here
        self._at = 0
        self._granted = WINDOW  # bytes that the client may send in all
        self._used = 0  # of these, bytes that are not waiting in the buffer

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have come and are not read."""
        return len(self._buffer)

    @property
    def encoding(self) -> str:
        """How its compressed messages are compressed."""
        return self.headers.get(b"grpc-encoding", b"identity").decode("latin-1")

    # -- what comes ---------------------------------------------------------------------------------------------

    def take(self, data: bytes, nbytes: int) -> None:
        """Take what has come; it counts for `nbytes`, as padding counts too."""
        self._used += nbytes - len(data)
        view = memoryview(data)
        if self._target is not None:
            step = min(len(view), len(self._target) - self._at)
            self._target[self._at : self._at + step] = view[:step]
            self._at += step
            self._used += step
            view = view[step:]
        self._buffer += view
        if self._target is None or self._at == len(self._target):
            _wake(self._came)

    def end_of_request(self) -> None:
        """The client sends no more."""
        self._ended = True
        _wake(self._came)

    def lose(self) -> None:
        """The client has given the call up, or its connection has ended."""
        self.gone = True
        _wake(self._came)
        _wake(self._writable)

    def wake(self) -> None:
        """The client may take more."""
        _wake(self._writable)

    async def read(self, limit: int, count: Callable[[int], None]) -> tuple[Message, bool] | None:
        """The next message, and whether it is compressed; None where there are no more.

        Args:
            limit: the most bytes.
            count: is called with the number of its bytes before they are asked for; raises an error for too many.

        Raises:
            LimitError: it is too large.
            BadRequestError: it is broken off.
            Disconnected: the client has gone.
        """
        while len(self._buffer) < _PREFIX.size:
            if self._ended and not self._buffer:
                return None
            await self._more()
        flag, length = _PREFIX.unpack_from(self._buffer)
        if flag > 1:
            raise BadRequestError(f"the message: expected 0 or 1 before its length, got {flag}")
        if length > limit:
            raise LimitError(f"the message: expected at most {limit} bytes, got {length}")
        count(length)
        end = _PREFIX.size + length
        if length > WINDOW - _PREFIX.size:
            message: Message = await self._large(length)
        else:
            self._grant(end)
            while len(self._buffer) < end:
                await self._more()
            message = bytes(memoryview(self._buffer)[_PREFIX.size : end])
            self._drop(end)
        self._grant(WORTH_UPDATE)
        return message, bool(flag)

    async def _large(self, length: int) -> memoryview:
        """A message that is larger than the window: it comes into memory that is touched as it comes."""
        target = fresh_memory(length)
        beginning = self._buffer[_PREFIX.size : _PREFIX.size + length]
        self._at = len(beginning)
        target[: self._at] = beginning
        self._drop(_PREFIX.size + self._at)
        self._target = target
        try:
            self._grant(length - self._at)
            while self._at < length:
                await self._more()
        finally:
            self._target = None
        return target

    def _drop(self, nbytes: int) -> None:
        """Forget bytes that have been read."""
        del self._buffer[:nbytes]
        self._used += nbytes

    async def _more(self) -> None:
        """Wait for more of the request."""
        if self._ended:
            raise BadRequestError("the message: expected all of it, got a part")
        if self.gone:
            raise Disconnected
        self._came = asyncio.get_running_loop().create_future()
        await self._came

    def _grant(self, nbytes: int) -> None:
        """Have the client's window open for `nbytes` that have not been read, and a little more."""
        if self._granted - self._used >= nbytes or self._ended or self.gone:
            return
        more = self._used + max(nbytes, WINDOW) - self._granted
        self._granted += more
        self._link.h2.increment_flow_control_window(more, self._stream)
        self._link.flush()

    # -- what is sent -------------------------------------------------------------------------------------------

    async def write(self, pieces: Sequence[Message], *, last: bool = True) -> None:
        """Write a message; when this returns, nothing of it is needed any more.

        Args:
            pieces: of the message.
            last: whether the call's end follows at once, with which a small message is sent.

        Raises:
            Disconnected: the client has gone, or has not read for too long.
        """
        left = sum(map(len, pieces))
        source = _PieceSource([_PREFIX.pack(0, left), *pieces])
        left += _PREFIX.size
        self._begin()
        link, loop = self._link, asyncio.get_running_loop()
        stalled = loop.call_later(link.stall_s, self.lose)
        unflushed = sent = 0
        try:
            while left:
                if self.gone:
                    raise Disconnected
                frame = min(left, link.h2.local_flow_control_window(self._stream), MAX_FRAME_BYTES)
                frame = min(frame, link.h2.max_outbound_frame_size)
                if frame <= 0 or link.paused:
                    link.flush()
                    self._writable = loop.create_future()
                    await self._writable
                    continue
                link.h2.send_data(self._stream, source.take(frame))
                link.wrote_data()
                left -= frame
                sent += frame
                unflushed += frame
                if unflushed >= FLUSHED:
                    link.flush()
                    unflushed = 0
                    if sent % TURN < FLUSHED:
                        await asyncio.sleep(0)
                if sent >= PIECE:
                    sent -= PIECE
                    stalled.cancel()
                    stalled = loop.call_later(link.stall_s, self.lose)
        finally:
            stalled.cancel()
        if not last:
            link.flush()

    def finish(self, status: StatusCode, sentence: str = "", metadata: Sequence[tuple[str, str]] = ()) -> None:
        """End the call with a status, unless it has ended or nobody reads it any more."""
        if self._left:
            return
        if self.gone:
            self._leave(ErrorCodes.CANCEL)
            return
        trailers = [("grpc-status", str(int(status)))]
        if sentence:
            trailers.append(("grpc-message", _details(sentence)))
        if not self._begun:
            trailers = [*_HEAD, *trailers]
        self._link.h2.send_headers(self._stream, [*trailers, *metadata], end_stream=True)
        self._leave(ErrorCodes.NO_ERROR)

    def refuse(self, status: int) -> None:
        """Answer what is no call of gRPC with a status of HTTP."""
        self._link.h2.send_headers(self._stream, [(":status", str(status))], end_stream=True)
        self._leave(ErrorCodes.NO_ERROR)

    def accept(self) -> None:
        """Note that the call's token has been accepted."""
        self._link.accept(self)

    def _begin(self) -> None:
        if not self._begun and not self.gone:
            self._begun = True
            self._link.h2.send_headers(self._stream, _HEAD)

    def _leave(self, code: ErrorCodes) -> None:
        """Forget what has come; what is still to come is not wanted."""
        self._left = True
        self.lose()
        self._link.end(self, self._stream, code)
        self._buffer.clear()


class _PieceSource:
    """The bytes of several pieces, in order."""

    def __init__(self, pieces: Sequence[Message]) -> None:
        self._pieces = [memoryview(piece) for piece in pieces if len(piece)]
        self._pieces.reverse()

    def take(self, nbytes: int) -> bytes | memoryview:
        """The next `nbytes`."""
        parts: list[memoryview] = []
        while nbytes:
            piece = self._pieces.pop()
            if len(piece) > nbytes:
                self._pieces.append(piece[nbytes:])
                piece = piece[:nbytes]
            parts.append(piece)
            nbytes -= len(piece)
        return b"".join(parts)


def fresh_memory(nbytes: int) -> memoryview:
    """Memory that is touched as it is filled, and given back to the system when its last view goes."""
    return memoryview(mmap.mmap(-1, max(1, nbytes)))[:nbytes]


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _details(sentence: str) -> str:
    """A sentence as a status has it, cut where it is too long."""
    text = quote(sentence, safe=_PLAIN)
    if len(text) <= DETAILS_BYTES:
        return text
    while len(text) > DETAILS_BYTES - 9:
        sentence = sentence[: len(sentence) * 9 // 10]
        text = quote(sentence, safe=_PLAIN)
    return text + quote("…")
