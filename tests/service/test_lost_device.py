"""A worker that has lost its device ends once the calls that run have said why."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from opbox_service.worker import messages, process
from opbox_service.worker.process import WorkerProcess


class EndedError(Exception):
    """In the place of the process's end."""


def test_a_call_that_runs_answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is behind its answer and sees that the device is lost; the call that lost it has yet to answer."""
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        raise EndedError

    monkeypatch.setattr(process.os, "_exit", end)
    waiting, running = SimpleNamespace(turn=None), SimpleNamespace(turn=object())
    worker: Any = SimpleNamespace(_tasks={1: waiting, 2: running}, _engine=SimpleNamespace(sessions={}))
    ended = threading.Event()

    def leave() -> None:
        with pytest.raises(EndedError):
            WorkerProcess._leave(worker, 600.0)
        ended.set()

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    assert not ended.wait(0.1)
    del worker._tasks[2]  # it has answered
    assert ended.wait(60)
    assert statuses == [messages.DEVICE_LOST]


def test_a_call_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise EndedError

    monkeypatch.setattr(process.os, "_exit", end)
    hanging = SimpleNamespace(turn=object())
    worker: Any = SimpleNamespace(_tasks={1: hanging}, _engine=SimpleNamespace(sessions={}))
    with pytest.raises(EndedError):
        WorkerProcess._leave(worker, 0.01)
