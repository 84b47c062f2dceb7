"""Pending: who waits for a value gets it, however often its batch is settled."""

from __future__ import annotations

import threading
from typing import Any

from opbox.pending import Pending


class Session:
    """A session whose batches are sent already."""

    def _send_if_open(self, batch: Any) -> None:
        """Nothing is left to send."""


class SettledAgain:
    """A lock that a second failure of the batch lets go while the waiting thread has it, which no test can time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._lock.release()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_a_batch_that_is_settled_twice_disturbs_nobody_who_waits() -> None:
    session: Any = Session()
    pending = Pending(session, session)
    pending._settle(1)
    pending._done = False  # as it was when the other thread looked
    lock: Any = SettledAgain()
    pending._arrives = lock
    assert pending.result() == 1


def test_the_value_of_the_last_time_stays() -> None:
    session: Any = Session()
    pending = Pending(session, session)
    pending._settle(1)
    pending._settle(2)
    assert pending.done()
    assert pending.result() == 2
