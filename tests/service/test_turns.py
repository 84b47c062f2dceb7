"""Turns: who runs next, by what each has worked; nothing is lost, and nobody waits for another's queue."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from opbox_service.turns import QUANTUM_S, Job, Turn, Turns


class Desk:
    """Offers jobs to turns, and notes who ran when."""

    def __init__(self, slots: int, **settings: float) -> None:
        self.turns = Turns(slots, **settings)
        self.ran: list[str] = []
        self.at_work = 0
        self.most_at_work = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def offer(self, owner: str, work: Callable[[Turn], None], **more: object) -> None:
        def run(turn: Turn) -> None:
            with self._lock:
                self.ran.append(owner)
            work(turn)

        job = Job(owner, str(more.pop("session", "")), run, **more)  # type: ignore[arg-type]  # weight, interactive
        turn = self.turns.offer(job)
        if turn is not None:
            thread = threading.Thread(target=self.turns.run, args=(turn, job), daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, count: int) -> None:
        until = time.monotonic() + 30
        while len(self.ran) < count or self.turns.waiting:
            assert time.monotonic() < until
            time.sleep(0.005)


def steps(count: int, seconds: float = 0.005) -> Callable[[Turn], None]:
    """Work of many steps, each of which looks whether others wait."""

    def work(turn: Turn) -> None:
        for _ in range(count):
            time.sleep(seconds)
            if turn.wanted:
                turn.pass_on()

    return work


def test_a_newcomer_goes_before_another_s_queue() -> None:
    desk = Desk(1)
    for _ in range(20):
        desk.offer("ann", steps(4))
    time.sleep(0.01)
    desk.offer("bob", steps(1))
    desk.wait(21)
    assert desk.ran.index("bob") <= 3
    assert Counter(desk.ran) == {"ann": 20, "bob": 1}


def test_long_work_gives_its_place_away_in_the_middle() -> None:
    desk = Desk(1)
    ended: list[str] = []

    def long(turn: Turn) -> None:
        steps(200)(turn)
        ended.append("ann")

    desk.offer("ann", long)
    time.sleep(3 * QUANTUM_S)
    desk.offer("bob", lambda turn: ended.append("bob"))
    desk.wait(2)
    until = time.monotonic() + 30
    while len(ended) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert ended == ["bob", "ann"]
    assert desk.turns.outlook("bob") == (0, 0.0)


def test_work_in_python_gives_way_to_another_owner_s_new_call() -> None:
    desk = Desk(3, fresh_s=60.0)
    looks, stop, began = Counter[str](), threading.Event(), threading.Event()
    during: list[int] = []

    def in_python(turn: Turn) -> None:
        while not stop.is_set():
            looks["ann"] += 1
            if turn.wanted:
                turn.pass_on()

    def new(turn: Turn) -> None:
        until = time.monotonic() + 30
        while not desk.turns.giving_way:
            assert time.monotonic() < until, "nobody has given way"
            time.sleep(0.001)
        during.extend(looks["ann"] for _ in range(2) if not time.sleep(0.05))

    desk.offer("ann", in_python)
    desk.offer("bob", new)
    desk.wait(2)
    until = time.monotonic() + 30
    while len(during) < 2 or looks["ann"] == during[-1]:
        assert time.monotonic() < until, "it has not gone on behind the other's end"
        time.sleep(0.001)
    before = looks["ann"]
    desk.offer("ann", lambda turn: began.set())
    assert began.wait(30)
    while looks["ann"] == before:
        assert time.monotonic() < until
        time.sleep(0.001)
    stop.set()
    assert during[0] == during[1]
    assert not desk.turns.giving_way, "a call of the same owner is no reason to wait"


def test_kernels_do_not_give_way() -> None:
    desk = Desk(3, fresh_s=60.0)
    ended: list[str] = []
    release = threading.Event()

    def kernels(turn: Turn) -> None:
        steps(4, QUANTUM_S)(turn)
        ended.append("ann")
        release.set()

    desk.offer("bob", lambda turn: ended.extend("bob" for _ in range(release.wait(30))))
    desk.offer("ann", kernels)
    desk.wait(2)
    assert release.wait(30)
    assert ended[0] == "ann"


def test_who_waits_for_a_call_longer_than_the_last_ones_is_told_so() -> None:
    desk = Desk(1)
    for _ in range(20):
        desk.offer("ann", lambda turn: None)
    desk.wait(20)
    begun, release = threading.Event(), threading.Event()

    def hold(turn: Turn) -> None:
        begun.set()
        release.wait()

    desk.offer("ann", hold)
    begun.wait()
    time.sleep(0.2)
    before, seconds = desk.turns.outlook("bob")
    release.set()
    assert (before, seconds >= 0.2) == (0, True)


def test_sessions_of_an_owner_take_turns_and_interactive_calls_go_first() -> None:
    desk = Desk(1)
    begun, release = threading.Event(), threading.Event()

    def hold(turn: Turn) -> None:
        begun.set()
        release.wait()

    order: list[str] = []
    desk.offer("ann", hold)
    begun.wait()
    for session, interactive in (("s1", False), ("s1", True), ("s1", True), ("s2", True)):
        name = f"{session}{'!' if interactive else ''}"
        desk.offer("ann", lambda turn, name=name: order.append(name), session=session, interactive=interactive)
    assert desk.turns.outlook("bob")[0] == 1
    release.set()
    desk.wait(5)
    time.sleep(0.05)
    assert order == ["s1!", "s2!", "s1!", "s1"]


def test_weights_are_shares_of_time() -> None:
    desk = Desk(1)
    spent: Counter[str] = Counter()
    stop = time.monotonic() + 1.5

    def work(owner: str) -> Callable[[Turn], None]:
        def run(turn: Turn) -> None:
            time.sleep(0.01)
            spent[owner] += 1
            if time.monotonic() < stop:
                desk.offer(owner, run, weight=3.0 if owner == "ann" else 1.0)

        return run

    for owner in ("ann", "bob"):
        for _ in range(4):
            desk.offer(owner, work(owner), weight=3.0 if owner == "ann" else 1.0)
    desk.wait(8)
    time.sleep(max(0.0, stop - time.monotonic()) + 0.2)
    assert 1.8 < spent["ann"] / spent["bob"] < 4.5, spent


def long_call(seconds: float, at_work: Counter[str] | None = None, owner: str = "") -> Callable[[Turn], None]:
    """Work that is one library's call; `at_work` counts the owner's calls that run, and the most at a time."""

    def work(turn: Turn) -> None:
        with turn.lent(lambda: None):
            if at_work is not None:
                at_work[owner] += 1
                at_work["most"] = max(at_work["most"], at_work[owner])
            time.sleep(seconds)
            if at_work is not None:
                at_work[owner] -= 1

    return work


def test_a_long_library_call_keeps_no_place() -> None:
    desk = Desk(2)
    for _ in range(12):
        desk.offer("ann", long_call(0.2))
    time.sleep(0.05)
    begun = time.monotonic()
    desk.offer("bob", steps(1))
    desk.wait(13)
    assert "bob" in desk.ran
    assert desk.turns.outlook("bob") == (0, 0.0)
    assert time.monotonic() - begun < 10


def test_a_small_call_runs_while_long_ones_do() -> None:
    desk, ended = Desk(1), threading.Event()
    release = threading.Event()

    def until_released(turn: Turn) -> None:
        with turn.lent(lambda: None):
            release.wait(30)

    for _ in range(3):
        desk.offer("ann", until_released)
    desk.offer("bob", lambda turn: ended.set())
    assert ended.wait(10), "bob waited for ann's library calls"
    release.set()
    desk.wait(4)


def test_an_owner_has_one_long_library_call_at_a_time() -> None:
    desk, at_work = Desk(4), Counter[str]()
    for _ in range(5):
        desk.offer("ann", long_call(0.03, at_work, "ann"))
    desk.wait(5)
    until = time.monotonic() + 10
    while at_work["ann"] or desk.turns._running:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert at_work["most"] == 1


def test_a_long_call_that_is_stopped_while_it_waits_does_not_begin() -> None:
    desk, release, stopped = Desk(2), threading.Event(), threading.Event()
    outcome: list[str] = []

    def until_released(turn: Turn) -> None:
        with turn.lent(lambda: None):
            release.wait(30)

    def check() -> None:
        if stopped.is_set():
            raise ValueError("it was cancelled")

    def waits(turn: Turn) -> None:
        try:
            with turn.lent(check):
                outcome.append("began")
        except ValueError as error:
            outcome.append(str(error))

    desk.offer("ann", until_released)
    desk.offer("ann", waits)
    time.sleep(0.1)
    stopped.set()
    until = time.monotonic() + 10
    while not outcome:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert outcome == ["it was cancelled"]
    release.set()
    desk.wait(2)
    desk.offer("bob", steps(1))
    desk.wait(3)


def test_one_place_stays_free_of_an_owner_s_flood() -> None:
    desk, release = Desk(3), threading.Event()
    began: list[float] = []

    def until_released(turn: Turn) -> None:
        release.wait(30)

    for _ in range(8):
        desk.offer("ann", until_released)
    time.sleep(0.05)
    assert desk.ran == ["ann", "ann"]
    assert desk.turns.outlook("bob") == (0, 0.0)
    assert desk.turns.outlook("ann")[0] == 6
    begun = time.monotonic()
    desk.offer("bob", lambda turn: began.append(time.monotonic()))
    until = time.monotonic() + 10
    while not began:
        assert time.monotonic() < until, "bob waits for ann's calls, which do not end"
        time.sleep(0.005)
    assert began[0] - begun < 5
    release.set()
    desk.wait(9)
    assert Counter(desk.ran) == {"ann": 8, "bob": 1}


def test_an_owner_alone_has_a_place_where_there_is_but_one() -> None:
    desk = Desk(1)
    for _ in range(3):
        desk.offer("ann", steps(1))
    desk.wait(3)
    assert desk.ran == ["ann"] * 3


def test_a_session_s_next_call_does_not_wait_for_one_in_the_middle_of_its_work() -> None:
    desk = Desk(1)
    ended: list[str] = []

    def long(turn: Turn) -> None:
        steps(40, 0.02)(turn)
        ended.append("long")

    desk.offer("ann", long, session="a")
    desk.offer("ann", lambda turn: ended.append("next"), session="a")
    desk.wait(2)
    until = time.monotonic() + 10
    while len(ended) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert ended == ["next", "long"]


def test_what_is_handed_on_runs_in_the_same_thread_when_the_turn_ends() -> None:
    desk, threads, ended = Desk(2), [], threading.Event()  # type: Desk, list[int], threading.Event

    def second(turn: Turn) -> None:
        assert turn.owner == "bob"
        threads.append(threading.get_ident())
        ended.set()

    def first(turn: Turn) -> None:
        turn.hand_on("bob", second, 2.0)
        assert turn.wanted
        assert desk.turns.waiting == 1, "not before this turn has ended"
        threads.append(threading.get_ident())

    desk.offer("ann", first)
    assert ended.wait(30)
    assert len(set(threads)) == 1
