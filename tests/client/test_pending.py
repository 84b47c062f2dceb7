"""Pending: who waits for a value gets it, however often its batch is settled."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest

from opbox.gate import Gate
from opbox.pending import CommandBatch, Pending
from opbox_protocol.errors import CancelledError
from opbox_protocol.transport import Reply


class Session:
    """A session whose batches are sent already, with nothing to warn of."""

    warnings: ClassVar[list[str]] = []

    def delivered(self, error: Exception) -> None:
        """Nothing is to be noted."""


SESSION: Any = Session()


def fetched() -> tuple[CommandBatch, Pending]:
    batch, pending = CommandBatch(), Pending(SESSION)
    batch.add({"do": "fetch", "id": 1, "as": ""}, None, None, pending)
    return batch, pending


def test_the_value_of_the_last_time_stays() -> None:
    batch, pending = fetched()
    assert not pending.done()
    for value in (1, 2):
        tensors: Any = {"o0": value}
        batch.settle(Reply({}, tensors))
        assert pending.done()
        assert pending.result() == value


def test_a_batch_may_fail_twice() -> None:
    batch, pending = fetched()
    batch.fail(CancelledError("first"))
    batch.fail(CancelledError("second"))
    with pytest.raises(CancelledError, match="second"):
        pending.result()


def test_a_gate_lets_everybody_through_and_stays_open() -> None:
    gate, through = Gate(), []
    threads = [threading.Thread(target=lambda: (gate.wait(), through.append(1))) for _ in range(5)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(10)
    gate.open()
    gate.wait()
    assert len(through) == 5
