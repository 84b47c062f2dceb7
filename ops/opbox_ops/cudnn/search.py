"""Has cuDNN's algorithms for convolutions measured, behind the calls that already run with the recommended ones.

A thread of the process measures one problem at a time, with a handle and a stream of its own. Nobody waits for it:
calls on a session's stream go on meanwhile. When a session's last problem has been measured, all of its results are
published together. A measurement ends at once where its memory is needed (`give_way`) or its session ends (`drop`).
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from threading import Condition, Thread, current_thread
from typing import TYPE_CHECKING, Any

from ..backend.failure import device_error
from . import results
from .algorithms import UsableAlgorithm
from .library import DeviceHandle, attached_cupy, device, further_handle
from .measuring import Abandoned, is_worth_measuring, measured_milliseconds, scratch_arrays

if TYPE_CHECKING:
    from .choice import ConvolutionChoice

__all__ = ["ask", "drop", "give_way", "settle"]

SECONDS_TO_GIVE_WAY = 5.0
_log = logging.getLogger(__name__)


class _Problem:
    """A problem that is to be measured.

    Attributes:
        choice: what learns the fastest algorithm.
        streams: of the sessions that have asked.
        is_abandoned: whether the measurement is to end at once.
        fastest: the result, when there is one.
    """

    def __init__(self, choice: ConvolutionChoice) -> None:
        self.choice = choice
        self.streams: set[int] = set()
        self.is_abandoned = False
        self.fastest: UsableAlgorithm | None = None


class _Measurements:
    """The process's measurements: those that wait, the one under way, those that are not yet published."""

    changed = Condition()
    waiting: deque[_Problem] = deque()
    running: _Problem | None = None
    measured: list[_Problem] = []
    holds_memory: int | None = None
    """The device on which the one under way has memory."""
    thread: Thread | None = None
    handles: dict[int, tuple[DeviceHandle, Any]] = {}
    """A handle and a stream by device, made once."""
    ends = False


def ask(choice: ConvolutionChoice) -> None:
    """Have a problem measured, unless it is too large, for the session whose stream is the current one."""
    if not is_worth_measuring(choice.problem):
        return
    stream = int(attached_cupy().cuda.get_current_stream().ptr)
    with _Measurements.changed:
        problem = next((one for one in _known() if one.choice is choice and not one.is_abandoned), None)
        if problem is None:
            problem = _Problem(choice)
            _Measurements.waiting.append(problem)
        problem.streams.add(stream)
        if _Measurements.thread is None and not _Measurements.ends:
            _Measurements.thread = Thread(target=_work, name="opbox-cudnn-search", daemon=True)
            _Measurements.thread.start()


def _known() -> list[_Problem]:
    return [
        *_Measurements.waiting,
        *_Measurements.measured,
        *([] if _Measurements.running is None else [_Measurements.running]),
    ]


def drop(stream: int) -> None:
    """Measure nothing more that only the session with this stream has asked for."""
    with _Measurements.changed:
        for problem in _known():
            if stream in problem.streams:
                problem.streams.discard(stream)
                problem.is_abandoned = not problem.streams
        _Measurements.waiting = deque(one for one in _Measurements.waiting if not one.is_abandoned)
        _Measurements.changed.notify_all()


def give_way() -> bool:
    """End a measurement that holds memory of the current device, and return whether there was one."""
    with _Measurements.changed:
        problem, place = _Measurements.running, device()
        if problem is None or _Measurements.holds_memory != place or current_thread() is _Measurements.thread:
            return False
        problem.is_abandoned = True
        return _Measurements.changed.wait_for(
            lambda: _Measurements.running is not problem or _Measurements.holds_memory is None, SECONDS_TO_GIVE_WAY
        )


def settle(timeout: float | None = None) -> bool:
    """Wait until everything that was asked for is known, for tests and benchmarks; False after `timeout` seconds."""
    with _Measurements.changed:
        return _Measurements.changed.wait_for(lambda: _Measurements.thread is None, timeout)


def _end() -> None:
    """At the interpreter's end: leave the device before CuPy does."""
    with _Measurements.changed:
        _Measurements.ends = True
        _Measurements.waiting.clear()
        if _Measurements.running is not None:
            _Measurements.running.is_abandoned = True
    settle(SECONDS_TO_GIVE_WAY)


atexit.register(_end)


def _work() -> None:
    """Measure what is asked for, until nothing is: the thread."""
    while True:
        with _Measurements.changed:
            if _Measurements.running is not None and _Measurements.running.fastest is not None:
                _Measurements.measured.append(_Measurements.running)
            _Measurements.running = None
            _publish()
            if not _Measurements.waiting or _Measurements.ends:
                _Measurements.thread = None
                _Measurements.changed.notify_all()
                return
            problem = _Measurements.running = _Measurements.waiting.popleft()
            _Measurements.changed.notify_all()
        try:
            _measure(problem)
        except Abandoned:
            continue
        except Exception as error:  # the calls that do not measure go on
            device_error(error)
            _log.warning("cuDNN's algorithms were not measured: %s", error)


def _publish() -> None:
    """Have choices take what was measured: those of a session together, so that its plans are recorded anew once."""
    waited_for = set[int]().union(*(problem.streams for problem in _Measurements.waiting))
    ready = [problem for problem in _Measurements.measured if not problem.streams & waited_for]
    for problem in ready:
        assert problem.fastest is not None
        problem.choice.take(problem.fastest)
        _Measurements.measured.remove(problem)


def _measure(problem: _Problem) -> None:
    """Find a problem's fastest algorithm: on disk, where another process has measured it, or by measuring."""
    choice, cupy = problem.choice, attached_cupy()
    problem.fastest = choice.stored()
    if problem.fastest is not None:
        return
    with cupy.cuda.Device(choice.place):
        if choice.place not in _Measurements.handles:
            _Measurements.handles[choice.place] = further_handle(), cupy.cuda.Stream(non_blocking=True)
        handle, stream = _Measurements.handles[choice.place]
        candidates = choice.candidates
        workspace = max(algorithm.workspace for algorithm in candidates)
        try:
            products = any(one.is_product for one in candidates)
            with stream, scratch_arrays(cupy, choice.problem, workspace, products=products) as arrays:
                if arrays is None:
                    return
                _Measurements.holds_memory = choice.place
                times = measured_milliseconds(handle, choice.problem, candidates, arrays, lambda: problem.is_abandoned)
        finally:
            with _Measurements.changed:
                _Measurements.holds_memory = None
                _Measurements.changed.notify_all()
    if times:
        problem.fastest = min(times, key=lambda algorithm: times[algorithm])
        results.write(choice.place, choice.problem, problem.fastest, times[problem.fastest])
