"""StreamThread: work runs in its order, also where an interpreter that ends starts no thread any more."""

from __future__ import annotations

import threading

import pytest

from opbox_service.stream_thread import StreamThread


def test_work_runs_in_its_order() -> None:
    stream, done = StreamThread(), []
    for number in range(100):
        stream.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    stream.wait_until_idle()
    assert done == list(range(100))
    stream.close()


def test_without_a_thread_the_caller_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on an interpreter that ends refuses new threads, by this error."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    stream, done = StreamThread(), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for number in range(3):
        stream.submit(lambda number=number: done.append((number, threading.current_thread())))  # type: ignore[misc]
    assert done == [(number, threading.current_thread()) for number in range(3)]
    stream.close()
