"""What a session counts for batches that wait, and for how long they keep it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import ConflictError, DeadlineError, GoneError, NotReadyError, QuotaError
from opbox_service import buffers
from opbox_service.buffers import Pool
from opbox_service.engine import Engine
from opbox_service.quota import Budget
from opbox_service.session.session import ServerSession
from opbox_service.session.sessions import LATE_S
from opbox_service.settings import Settings
from opbox_service.task import Task

X = np.zeros(1 << 16, np.float32)
PUT = {"do": "put", "id": 1, "tensor": "x"}
TTL_S = 100.0


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine_of_test = Engine(
        Settings(max_waiting=4, max_session_bytes=1 << 20, session_ttl_s=TTL_S, max_session_objects=4)
    )
    engine_of_test.sessions._stop.set()  # its sessions are swept by the tests alone
    yield engine_of_test
    engine_of_test.close()


@pytest.fixture
def session(engine: Engine) -> ServerSession:
    return engine.sessions.create("ann")


def submit(session: ServerSession, seq: int, *commands: Any, done: Any = None, task: Task | None = None) -> None:
    """A batch with X; nobody waits for it unless there is `done`."""
    session.submit(seq, list(commands or [PUT]), {"x": X}, done, task=task)
    session.drain()


def asked(session: ServerSession, seq: int, *commands: Any) -> Any:
    """The answer to a batch that is waited for."""
    answers: list[Any] = []
    submit(session, seq, *commands, done=answers.append)
    return answers[0]


def test_memory_of_a_session_that_ends_behind_an_answer_is_free_when_it_has_ended(
    engine: Engine, session: ServerSession
) -> None:
    used: list[int] = []

    def end() -> None:
        session.close("it was ended")
        used.append(engine.ledger.of("ann", "cpu").used)

    ending = threading.Thread(target=end)

    def answered(answer: Any) -> None:
        """Whoever has the answer ends the session before this thread is through with the batch."""
        ending.start()
        ending.join(0.2)

    submit(session, 1, done=answered)
    ending.join()
    assert used == [0]


def given_up(session: ServerSession) -> None:
    session.expire_waiting(time.monotonic() + 2, 1.0)


def cancelled(session: ServerSession) -> None:
    assert session.cancel() == [2]


def ended(session: ServerSession) -> None:
    session.close("it was ended")


def run(session: ServerSession) -> None:
    submit(session, 1, {"do": "seed", "seed": 1})
    submit(session, 3, {"do": "free", "ids": [1]})


@pytest.mark.parametrize("end", [given_up, cancelled, ended, run], ids=lambda end: end.__name__)
def test_a_batch_that_no_longer_waits_is_not_counted(
    engine: Engine, session: ServerSession, end: Callable[[ServerSession], None]
) -> None:
    owners = engine.ledger.of("ann", "cpu")
    submit(session, 2, task=Task())
    assert session.budget.used == X.nbytes
    assert owners.used >= X.nbytes
    end(session)
    assert session.budget.used == 0
    assert owners.used == 0


def test_a_batch_behind_one_that_runs_is_not_counted_when_the_session_ends(session: ServerSession) -> None:
    used: list[int] = []

    def done(answer: Any) -> None:
        submit(session, 2)
        used.append(session.budget.used)
        session.close("it was ended")
        used.append(session.budget.used)

    submit(session, 1, {"do": "seed", "seed": 1}, done=done)
    assert used == [X.nbytes, 0]


def test_an_error_of_batches_that_were_given_up_goes_to_the_next_that_is_waited_for(session: ServerSession) -> None:
    submit(session, 2)
    submit(session, 3)
    given_up(session)
    error = asked(session, 4)
    assert isinstance(error, DeadlineError)
    assert "batch 1 did not come within 1 s" in str(error)
    assert not isinstance(asked(session, 5), BaseException)


def test_a_batch_that_gets_no_place_is_not_counted(session: ServerSession) -> None:
    for seq in (2, 3, 4, 5):
        session.submit(seq, [], {}, None)
    for seq, kind in ((2, ConflictError), (6, QuotaError), (1 << 20, QuotaError)):
        with pytest.raises(kind):
            submit(session, seq)
        assert session.budget.used == 0
    session.close("it was ended")
    with pytest.raises(GoneError):
        submit(session, 1)
    assert session.budget.used == 0


def test_a_batch_whose_tensors_cannot_be_copied_is_not_counted(
    session: ServerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(shape: tuple[int, ...], dtype: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(session.table.backend.unmetered, "empty", full)  # memory cannot be made scarce for this alone
    with pytest.raises(MemoryError):
        submit(session, 2)
    assert session.budget.used == 0


# -- time to live -----------------------------------------------------------------------------------------------------


def test_a_batch_that_waits_renews_the_time_to_live(session: ServerSession) -> None:
    session.used -= TTL_S + 1
    assert session.idle(time.monotonic())
    submit(session, 2)
    assert not session.idle(time.monotonic())


def test_a_batch_that_ends_renews_the_time_to_live(session: ServerSession) -> None:
    running, go_on = threading.Event(), threading.Event()

    def done(answer: Any) -> None:
        running.set()
        go_on.wait(60)

    work = threading.Thread(target=submit, args=(session, 1), kwargs={"done": done})
    work.start()
    assert running.wait(60)
    session.used -= TTL_S + 1
    assert not session.idle(time.monotonic()), "it has a batch that runs"
    go_on.set()
    work.join()
    assert not session.idle(time.monotonic())


def test_a_server_that_was_paused_ends_no_session_for_it(engine: Engine, session: ServerSession) -> None:
    """Nothing is pending in it. The time before the pause counts, and that of the pause does not."""
    sessions = engine.sessions
    waiting = sessions.create("ann")
    submit(waiting, 2)
    now = time.monotonic()
    session.used = waiting.used = now - TTL_S / 2
    sessions.sweep(now)
    now += 10 * TTL_S
    sessions.sweep(now)
    assert not session.closed
    assert now - session.used == pytest.approx(TTL_S / 2)
    assert waiting.json()["waiting"] == 1, "the batch before it may have come during the pause"
    while now - session.used <= TTL_S:
        assert not session.closed
        now += LATE_S / 2  # no pause: the sweeper has waited for its turn
        sessions.sweep(now)
    assert session.closed == f"session {session.id} expired after {TTL_S:g} s unused: make a new one"


# -- budgets, buffers, and numbers of objects -------------------------------------------------------------------------


def test_a_closed_budget_counts_nothing_and_takes_nothing() -> None:
    owners = Budget(1 << 20)
    budget = Budget(1 << 20, owners)
    budget.take(1000)
    budget.close()
    assert (budget.used, owners.used) == (0, 0)
    budget.give(1000)
    assert (budget.used, owners.used) == (0, 0)
    with pytest.raises(GoneError, match="got one that has ended"):
        budget.take(1)
    with pytest.raises(GoneError):
        budget.reserve(1)
    budget.close()
    assert (budget.used, budget.reserved, owners.used) == (0, 0, 0)


def test_a_block_gives_back_what_it_reserved_and_did_not_keep() -> None:
    """And nothing of what was reserved before it."""
    budget = Budget(1 << 20)
    budget.reserve(1000)
    with budget.settling():
        budget.reserve(300)
        budget.keep(100)
        assert (budget.used, budget.reserved) == (1300, 1200)
    assert (budget.used, budget.reserved) == (1100, 1000)
    with pytest.raises(QuotaError), budget.settling():
        budget.reserve(1 << 20)
    assert (budget.used, budget.reserved) == (1100, 1000)
    budget.settle()
    assert (budget.used, budget.reserved) == (100, 0)


def test_a_buffer_that_is_refused_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(shared=True, limit=1 << 17, keep=0)
    for _ in range(3):
        with pytest.raises(NotReadyError, match="expected at most 131072 bytes in use, got 0 and 200000 more"):
            pool.lease(200_000)

    def full(size: int, shared: bool) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as system:
        system.setattr(buffers, "Segment", full)  # no machine's memory is filled up for it
        for _ in range(3):
            with pytest.raises(NotReadyError, match="no room"):
                pool.lease(1 << 17)
    assert pool.lent_bytes == 0
    pool.lease(1 << 17).release()


def test_objects_are_limited_one_at_a_time_too(session: ServerSession) -> None:
    for number in (1, 2, 3):
        assert not isinstance(asked(session, number, {**PUT, "id": number}), BaseException)
    assert isinstance(asked(session, 4, {"do": "zeros", "ids": [4, 5], "shape": [1], "dtype": "float32"}), QuotaError)
    assert not isinstance(asked(session, 5, {**PUT, "id": 4}), BaseException)
    refusal = asked(session, 6, {**PUT, "id": 5})
    assert isinstance(refusal, QuotaError)
    assert "at most 4 arrays, executors and kernels, got 4 and 1 more" in str(refusal)
    assert not isinstance(asked(session, 7, {"do": "free", "ids": [1]}, {**PUT, "id": 5}), BaseException)
