"""CUDA graphs: what calls queue on a stream is recorded once, and queued again by one launch.

A recorded launch has the pointers and numbers that it was recorded with. So what it reads must stay where it is: calls
that ask CuPy's pool for memory are refused, and so is what CUDA refuses while a stream is captured (waiting, copies
from and to a host's array, libraries that do).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["capture"]


class _Allocates(Exception):
    """A call asked for memory while it was captured."""


def capture(cupy: Any, calls: Sequence[Callable[[], Any]]) -> Callable[[], None] | None:
    """One call that queues what these do on the device; None where that cannot be recorded.

    Nothing is run. The calls have run before: what they make once is made.
    """
    runtime = cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream()
    if not stream.ptr:  # the default stream cannot be captured
        stream = cupy.cuda.Stream(non_blocking=True)
    try:
        with stream:
            # Other threads may do what they like meanwhile.
            stream.begin_capture(runtime.streamCaptureModeThreadLocal)
            try:
                with _watching(cupy):
                    for call in calls:
                        call()
            except BaseException:
                _abandon(stream)
                raise
            graph = stream.end_capture()
    except Exception:
        # Whatever it was: the call that runs eagerly meets it too, and says so.
        return None

    def replay() -> None:
        graph.launch(cupy.cuda.get_current_stream())

    return replay


def _watching(cupy: Any) -> Any:
    """The block in which this thread may not ask for memory."""

    class Watching(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
        name = "opbox_capture"

        def malloc_preprocess(self, **request: Any) -> None:
            raise _Allocates

    return Watching()


def _abandon(stream: Any) -> None:
    """Take a stream out of a capture that failed."""
    try:
        stream.end_capture()
    except Exception:  # the error that ended it is under way
        return
