"""CUDA graphs: what calls queue on a stream is recorded once, and queued again by one launch.

A recorded launch has the pointers and numbers that it was recorded with. So what it reads must stay where it is: calls
that ask CuPy's pool for memory are refused, and so is what CUDA refuses while a stream is captured (waiting, copies
from and to a host's array, libraries that do).

Other threads may spoil a recording: by waiting for the whole device, as new handles of libraries do. They take the lock
`undisturbed` for it, one recording at a time has it too, and one that was spoilt all the same is tried again. The
garbage collector rests meanwhile: memory that it frees in the recording thread would end the recording.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["RecordedGraph", "capture", "depend_on", "undisturbed"]

ATTEMPTS = 3
"""Of a recording that others spoil."""
_REFUSED, _SPOILT = 900, 901
"""CUDA's statuses of a call that no capture takes, and of a capture that some call has ended."""
_lock = threading.RLock()


class _Allocates(Exception):
    """A call asked for memory while it was captured."""


class _Changing(Protocol):
    """What decides how calls run; another `version` says that they would run in another way now."""

    version: int


class _Recording(threading.local):
    """What this thread's recording depends on, by identity; None while it records nothing."""

    dependencies: dict[int, tuple[_Changing, int]] | None = None


_recording = _Recording()


@contextmanager
def undisturbed() -> Iterator[None]:
    """The block in which no other thread records, or does what would spoil a recording."""
    with _lock:
        yield


def depend_on(source: _Changing, version: int) -> None:
    """Say, in a call, how it runs: a recording of it is out of date when `source` has another version."""
    if _recording.dependencies is not None:
        _recording.dependencies[id(source)] = source, version


class RecordedGraph:
    """Calls that were recorded: it queues on the current stream what they queued."""

    def __init__(self, cupy: Any, graph: Any, dependencies: Sequence[tuple[_Changing, int]]) -> None:
        self._current_stream, self._graph = cupy.cuda.get_current_stream, graph
        self._dependencies = dependencies

    def __call__(self) -> None:
        self._graph.launch(self._current_stream())

    @property
    def is_stale(self) -> bool:
        """True if the calls would run in another way now: run them, and record them again."""
        # Most depend on nothing, and each run asks.
        return bool(self._dependencies) and any(source.version != version for source, version in self._dependencies)


def capture(cupy: Any, calls: Sequence[Callable[[], Any]]) -> RecordedGraph | None:
    """One call that queues what these do on the device; None where that cannot be recorded.

    Nothing is run. The calls have run before: what they make once is made.
    """
    with undisturbed():
        collects = gc.isenabled()
        gc.disable()
        try:
            return _captured(cupy, calls)
        finally:
            if collects:
                gc.enable()


def _captured(cupy: Any, calls: Sequence[Callable[[], Any]]) -> RecordedGraph | None:
    stream = cupy.cuda.get_current_stream()
    if not stream.ptr:  # the default stream cannot be captured
        stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(ATTEMPTS):
        dependencies: dict[int, tuple[_Changing, int]] = {}
        try:
            # Other threads may do what they like meanwhile, but for what waits for the whole device.
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            _recording.dependencies = dependencies
            try:
                with stream, _watching(cupy):
                    for call in calls:
                        call()
            except Exception as error:
                # A call of these that no capture takes is refused every time.
                if not _is_spoilt(stream) or getattr(error, "status", None) == _REFUSED:
                    return None
                continue
            except BaseException:
                _is_spoilt(stream)
                raise
            finally:
                _recording.dependencies = None
            return RecordedGraph(cupy, stream.end_capture(), list(dependencies.values()))
        except Exception as error:
            # Whatever it was: the call that runs eagerly meets it too, and says so.
            if getattr(error, "status", None) != _SPOILT:
                return None
    return None


def _watching(cupy: Any) -> Any:
    """The block in which this thread may not ask for memory."""

    class Watching(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
        name = "opbox_capture"

        def malloc_preprocess(self, **request: Any) -> None:
            raise _Allocates

    return Watching()


def _is_spoilt(stream: Any) -> bool:
    """Take a stream out of a capture that failed, and return whether CUDA had ended it."""
    try:
        stream.end_capture()
    except Exception as error:  # the error of a call is under way
        return getattr(error, "status", None) == _SPOILT
    return False
