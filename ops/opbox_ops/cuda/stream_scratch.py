"""Scratch that calls of one stream share, one after another: of a session's own, and of the default stream's.

It is allocated when the first call asks and stays until the session ends, so that a recorded graph finds it again.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import MXNetError

if TYPE_CHECKING:
    from ..backend.base import Admit

__all__ = ["SCRATCH_BYTES", "add_stream", "drop_stream", "stream_scratch"]

SCRATCH_BYTES = 1056 * 1024
"""Size of a stream's scratch: 256 numbers of single precision for each of the blocks that fill a device."""

_sessions: dict[int, Admit] = {}
"""Whom to ask for memory, by the streams that are a session's own."""
_memory: dict[tuple[int, int], Any] = {}
"""By device and stream; 0 of all streams that are nobody's own."""
_lock = Lock()


def add_stream(stream: int, admit: Admit) -> None:
    """Calls of this stream have scratch of their own, once one asks and `admit` has been asked."""
    _sessions[stream] = admit


def drop_stream(stream: int) -> None:
    """The stream ends; what was queued on it has run."""
    _sessions.pop(stream, None)
    for key in [key for key in list(_memory) if key[1] == stream]:
        _memory.pop(key, None)


def stream_scratch(cupy: Any) -> Any:
    """The scratch of this thread's device and stream; None where the session's quota is short of it."""
    stream = cupy.cuda.get_current_stream().ptr
    admit = _sessions.get(stream)
    key = cupy.cuda.runtime.getDevice(), 0 if admit is None else stream
    memory = _memory.get(key)
    if memory is not None:
        return memory
    try:
        if admit is not None:
            admit(SCRATCH_BYTES, True)
        try:
            memory = cupy.cuda.alloc(SCRATCH_BYTES)
        except BaseException:
            if admit is not None:
                admit(-SCRATCH_BYTES, True)
            raise
    except MXNetError:
        return None
    with _lock:
        return _memory.setdefault(key, memory)
