"""A call at work, as other threads see it: it can be stopped, and its graphs may take only so much time.

The engine's loops come by a checkpoint: once a step of a plan (`Task.check`), at the nodes where graphs are read,
inferred and compiled (`checkpoint`), and in a step whose operator works for long (`opbox_ops.pausing`). Code that is
not run for a call, as in a test or a script, has no task, and all of this costs it nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from opbox_ops.pausing import set_pause
from opbox_protocol.errors import LimitError, MXNetError

from .stages import Stages
from .turns import Turn

__all__ = ["MAX_CALL_MULTIPLICATIONS", "NODES", "Task", "away", "checkpoint", "current", "graph_budget", "running"]

NODES = 64
"""Number of nodes between two readings of the clock."""
MAX_CALL_MULTIPLICATIONS = 1 << 42
"""Maximum number of multiplications of a library's call on a server: 110 s of one thread at 40 GFLOP/s, 220 s at half
that. The default deadline is 300 s."""
LOOK_SECONDS = 0.01
"""Minimum seconds between two readings of a thread's processor time, which take up to 0.1 ms."""


class Task:
    """A call at work, which other threads may stop.

    Args:
        graph_seconds: processor time that reading, inferring or compiling one graph may take.

    Attributes:
        came: when the call came, by time.monotonic.
        stopped: what the call is to be answered, when it has been stopped; read at each checkpoint.
        turn: the turn that it runs in, where calls take turns.
        stages: when it waited and computed; None where nobody wants to know.
        weight: of the owner; see `turns`.
        away_s: seconds that it has waited for other processes.
    """

    __slots__ = (
        "_graph_end",
        "_lock",
        "_look",
        "_nodes",
        "_on_stop",
        "away_s",
        "came",
        "graph_seconds",
        "stages",
        "stopped",
        "turn",
        "weight",
    )

    def __init__(self, graph_seconds: float = float("inf")) -> None:
        self.graph_seconds = graph_seconds
        self.came = time.monotonic()
        self.stopped: MXNetError | None = None
        self.turn: Turn | None = None
        self.stages: Stages | None = None
        self.weight = 1.0
        self.away_s = 0.0
        self._on_stop: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._graph_end: float | None = None
        self._look = 0.0
        self._nodes = 0

    def stop(self, error: MXNetError) -> None:
        """End the work at its next checkpoint with `error`; the first reason counts. Any thread may call this."""
        with self._lock:
            if self.stopped is not None:
                return
            self.stopped, on_stop = error, self._on_stop
        if on_stop is not None:
            on_stop()

    def when_stopped(self, on_stop: Callable[[], None]) -> None:
        """Call `on_stop` when it is stopped; at once when it has been."""
        with self._lock:
            self._on_stop = on_stop
            if self.stopped is None:
                return
        on_stop()

    def end(self) -> None:
        """Note that nothing is left to stop, and drop the functions that `when_stopped` has."""
        self._on_stop = None

    def check(self) -> None:
        """Raise what the call was stopped with; where others wait for their turn, let them have it."""
        if self.stopped is not None:
            raise self.stopped
        if self.turn is not None and self.turn.wanted:
            self.turn.pass_on()
            if self.stopped is not None:
                raise self.stopped

    def nodes(self, count: int) -> None:
        """Count nodes of a graph that have been worked on, at most NODES at a time.

        Raises:
            MXNetError: the call has been stopped.
            LimitError: its graph has taken longer than it may.
        """
        self._nodes += count
        if self._nodes < NODES:
            return
        self._nodes = 0
        self.check()
        if self._graph_end is None or time.perf_counter() < self._look:
            return
        self._look = time.perf_counter() + LOOK_SECONDS
        if time.thread_time() > self._graph_end:
            raise LimitError(
                f"the graph: expected to be read, inferred or compiled in {self.graph_seconds:g} s of processor time, "
                "got one that takes longer: use a smaller one"
            )

    @contextlib.contextmanager
    def graph(self) -> Iterator[None]:
        """The block works on one graph; a block inside it is part of it."""
        if self._graph_end is not None:
            yield
            return
        self._graph_end = time.thread_time() + self.graph_seconds
        try:
            yield
        finally:
            self._graph_end = None


class _Running(threading.local):
    task: Task | None = None


_running = _Running()


def current() -> Task | None:
    """The task that this thread works on; None where there is none."""
    return _running.task


class running:
    """The thread works on `task` in the block, in the turn of the task that it worked on before."""

    __slots__ = ("_before", "_lends", "_task")

    def __init__(self, task: Task | None) -> None:
        self._task = task

    def __enter__(self) -> None:
        task = self._task
        before = self._before = _running.task
        _running.task = task
        self._lends = False
        if task is not None and task is not before and before is not None and before.turn is not None:
            self._lends = True
            task.turn = before.turn

    def __exit__(self, *error: object) -> None:
        _running.task = self._before
        if self._lends and self._task is not None:
            self._task.turn = None


def checkpoint(nodes: int = 1) -> None:
    """Called once a node, or once in NODES nodes, by what works on graphs; see `Task.nodes`."""
    task = _running.task
    if task is not None:
        task.nodes(nodes)


def _pause() -> None:
    """Called between the pieces of a step; see `opbox_ops.pausing`."""
    task = _running.task
    if task is not None:
        task.check()


def _in_one_piece(multiplications: int) -> contextlib.AbstractContextManager[None]:
    """Called around a library's call that nothing stops; see `opbox_ops.pausing`."""
    task = _running.task
    if task is None or task.turn is None:
        _pause()
        return contextlib.nullcontext()
    if multiplications > MAX_CALL_MULTIPLICATIONS:
        raise LimitError(
            f"a step: expected at most {MAX_CALL_MULTIPLICATIONS:,} multiplications in a library's call that cannot be "
            f"stopped, got {multiplications:,}: use smaller arrays, or an engine in your own process"
        )
    return task.turn.lent(task.check)


set_pause(_pause, _in_one_piece)


def graph_budget() -> contextlib.AbstractContextManager[None]:
    """The block works on one graph, whose time is bounded where a task is at work."""
    task = _running.task
    return contextlib.nullcontext() if task is None else task.graph()


@contextlib.contextmanager
def away() -> Iterator[Callable[[], None]]:
    """The block waits for other processes, and others have the call's turn meanwhile.

    Yields:
        a function for the block to call often, which raises what the call has been stopped with.
    """
    task = _running.task
    if task is None:
        yield lambda: None
        return

    def check() -> None:
        if task.stopped is not None:
            raise task.stopped

    begun = time.monotonic()
    try:
        if task.turn is None:
            yield check
        else:
            with task.turn.away():
                yield check
    finally:
        task.away_s += time.monotonic() - begun
