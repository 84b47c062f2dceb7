"""The processor time that one graph may take to be read, inferred and compiled."""

from __future__ import annotations

import time

import pytest

from opbox_protocol.errors import LimitError
from opbox_service.task import NODES, Task, checkpoint, graph_budget, running


def work(seconds: float) -> int:
    """Nodes worked on in that much time of this thread."""
    count = 0
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(NODES):
            checkpoint()
        count += NODES
    return count


def test_a_graph_that_takes_too_long_is_refused() -> None:
    with running(Task(graph_seconds=0.05)), graph_budget(), pytest.raises(LimitError, match=r"in 0\.05 s of processor"):
        work(5)


def test_time_outside_graphs_does_not_count() -> None:
    with running(Task(graph_seconds=0.2)):
        assert work(0.3)
        with graph_budget():
            assert work(0.01)


def test_waiting_does_not_count() -> None:
    """The clock is the thread's own: others that work meanwhile take nothing from the budget."""
    with running(Task(graph_seconds=0.2)), graph_budget():
        time.sleep(0.3)
        assert work(0.01)


def test_without_a_task_nothing_is_counted() -> None:
    with graph_budget():
        assert work(0.02)
