"""Turns: which call runs next where there are more than run at a time.

Deficit round robin, counted in seconds of work: every owner in the queue may work for a quantum (times its weight) in a
round, and within an owner every session; what a call takes beyond that is paid back in the rounds after. Interactive
calls of an owner go before its others. A call that has worked for a quantum while others wait gives its place away at
its next checkpoint, and gets one back in its turn.

Of the places one stays free of an owner's calls where there are three: who comes next to a flood of somebody's finds
it, and does not wait for the end of a quantum.

A library's call that nothing stops, and that takes long, lends its place to others (`Turn.lent`): so no number of them
keeps everybody waiting. Of an owner one such call runs at a time.

Calls that run at a time share one interpreter. One that works in Python for long, as the compiling of a large graph
does, gives way at its checkpoints to a call of another owner that has just begun: on a busy machine that would wait for
the interpreter's lock again and again, for as long as the system gives the lock's owner no processor.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

__all__ = ["NO_TURN", "PARKED", "Job", "Turn", "Turns"]

QUANTUM_S = 0.02
DEBT_S = 2.0
"""Maximum debt in seconds, so that long work alone is not followed by an equally long wait."""
PARKED = 32
"""Maximum number of calls that wait in the middle of their work; each keeps a thread."""
FRESH_S = 0.05
"""Seconds for which a call that has begun goes before others' work in Python."""
MIN_LOOKS = 8
"""Number of checkpoints in a quantum from which on a call works in Python and not in long kernels."""
MIN_SHARED_SLOTS = 3
"""Number of slots from which on one owner may not use all of them."""
LOOK_S = 0.05
"""Seconds between checks for cancellation while waiting for the owner's library call."""


@dataclass(eq=False, slots=True)
class Job:
    """A call that wants to run.

    Attributes:
        owner, session: whose turn it is; session is "" where there is none.
        work: runs it; gets the turn that it runs in.
        weight: of the owner: one of weight 2 gets twice the time of one of weight 1.
        interactive: whether it goes before the owner's others.
        turn, resume: where the call waits in the middle of its work: its turn, and what wakes it; else None.
    """

    owner: str
    session: str
    work: Callable[[Turn], None]
    weight: float = 1.0
    interactive: bool = True
    turn: Turn | None = None
    resume: threading.Event | None = None


class Turn:
    """The slot in which a job runs.

    Attributes:
        wanted: whether others wait for it, or have just begun; looked at once a step.
        owner: of the call.
        began: when the call did.
        since: when it was last charged for its work.
        works_until: until when it need not give way, having waited as long.
    """

    __slots__ = ("_job", "_looks", "_turns", "began", "owner", "since", "wanted", "works_until")

    def __init__(self, turns: Turns, job: Job) -> None:
        self._turns = turns
        self._job = job
        self._looks = 0
        self.owner = job.owner
        self.began = self.since = self.works_until = time.monotonic()
        self.wanted = False

    def outlook(self) -> tuple[int, float]:
        """See Turns.outlook; for a new call of this one's owner."""
        return self._turns.outlook(self._job.owner)

    def hand_on(self, owner: str, work: Callable[[Turn], None], weight: float = 1.0) -> None:
        """Have something done in a turn of this owner's when this one ends, by this thread or another."""
        self._turns.queue(Job(owner, "", work, weight))

    def pass_on(self) -> None:
        """Give way to others after a quantum of work; return when it is this call's turn again."""
        self._looks += 1
        if time.monotonic() - self.since >= QUANTUM_S:
            looks, self._looks = self._looks, 0
            self._turns.pass_on(self, self._job, in_python=looks >= MIN_LOOKS)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Others have the place while the block waits for other processes.

        Unlike `lent`, any number of an owner's calls may wait so: they may wait for each other.
        """
        self._turns.lend(self, self._job)
        try:
            yield
        finally:
            self.since = time.monotonic()  # who waits for others has not worked
            self._turns.take_back(self, self._job, ends_long=False)

    @contextlib.contextmanager
    def lent(self, check: Callable[[], None]) -> Iterator[None]:
        """Others have the place while the block runs, which is one at a time of its owner's.

        Args:
            check: raises what the call has been stopped with.
        """
        check()
        self._turns.lend(self, self._job)
        began = False
        try:
            while not began:
                began = self._turns.begins_long(self._job, LOOK_S)
                check()
            yield
        finally:
            self._turns.take_back(self, self._job, ends_long=began)


class _NoTurn:
    """A turn for calls that need none."""

    __slots__ = ()
    wanted = False


NO_TURN = _NoTurn()


@dataclass(slots=True)
class _Lane:
    """Waiting jobs of one session, or of one owner's calls without a session."""

    deficit: float = 0.0
    jobs: deque[Job] = field(default_factory=deque)


@dataclass(slots=True)
class _Owner:
    """Waiting jobs of one owner: interactive lanes and others, each a ring of sessions."""

    weight: float = 1.0
    deficit: float = 0.0
    running: int = 0
    at_work: int = 0
    """The number of running calls."""
    waits: int = 0
    long: bool = False
    """True while an uninterruptible library call runs."""
    lanes: tuple[OrderedDict[str, _Lane], OrderedDict[str, _Lane]] | None = None
    """None until a job waits: most never do."""

    def lane(self, job: Job) -> _Lane | None:
        """Return the lane where jobs like this one wait; None where there is none."""
        return self.lanes[0 if job.interactive else 1].get(job.session) if self.lanes is not None else None

    def push(self, job: Job, *, first: bool) -> None:
        """Queue a job, behind or before the others of its session."""
        if self.lanes is None:
            self.lanes = OrderedDict(), OrderedDict()
        lane = self.lanes[0 if job.interactive else 1].setdefault(job.session, _Lane())
        (lane.jobs.appendleft if first else lane.jobs.append)(job)
        self.waits += 1

    def pop(self) -> Job:
        """The next job: of the interactive lanes first, in rounds over sessions."""
        assert self.lanes is not None
        self.waits -= 1
        ring = self.lanes[0] or self.lanes[1]
        while True:
            name, lane = next(iter(ring.items()))
            if lane.deficit < 0:
                lane.deficit += QUANTUM_S
                ring.move_to_end(name)
                continue
            job = lane.jobs.popleft()
            ring.move_to_end(name)
            if not lane.jobs:
                del ring[name]
            return job


class Turns:
    """Decides which call runs next. Safe to call from many threads.

    Args:
        slots: how many calls run at a time.
        start: runs a function in a thread of its own.
        fresh_s: seconds for which a call that has begun goes before others' work in Python.

    Attributes:
        giving_way: how many calls wait for such a one.
    """

    def __init__(
        self,
        slots: int,
        start: Callable[[Callable[[], None]], None] | None = None,
        *,
        fresh_s: float = FRESH_S,
    ) -> None:
        self._slots = slots
        self._fresh_s = fresh_s
        self.giving_way = 0
        self._most_of_owner = slots - 1 if slots >= MIN_SHARED_SLOTS else slots
        self._start = start or _in_a_thread
        self._running: set[Turn] = set()
        self._parked = 0
        self._lent = 0
        self._waiting = 0
        self._seconds = 0.0
        self._owners: OrderedDict[str, _Owner] = OrderedDict()
        self._lock = threading.Lock()
        self._long_ended = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        """Notified when a call ends or waits."""

    @property
    def idle(self) -> bool:
        """True if no call runs or waits."""
        return not (self._running or self._lent or self._parked or self._waiting)

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return self._waiting

    def outlook(self, owner: str) -> tuple[int, float]:
        """Calls that may go before a new one of `owner`, and the seconds that it may wait for its turn.

        In a round every owner has its turn, so of another's calls no more go before than the owner's own. A turn takes
        as long as the last ones did, or as those that run have already taken where that is longer.
        """
        with self._lock:
            own = self._owners.get(owner)
            queued = _count(own) + 1
            before = sum(min(_count(other), queued) for name, other in self._owners.items() if name != owner)
            before += queued - 1
            account = self._owners.get(owner)
            if self._has_place(account or _Owner()):
                return 0, 0.0
            now = time.monotonic()
            taken = sum(now - turn.since for turn in self._running) / max(1, len(self._running))
            return before, (before + 1) * max(self._seconds, taken) / self._slots

    def offer(self, job: Job) -> Turn | None:
        """A turn for the job now, for this thread to `run`; None when it has to wait: another thread will run it."""
        with self._lock:
            if self._has_place(self._account(job)):
                turn = self._begin(job)
                if not self._lent:
                    return turn
                # Threads whose place is lent are busy all the same: this one may be the last that takes calls.
                self._start(lambda: self.run(turn, job))
                return None
            self._enqueue(job, first=False)
            for turn in self._running:
                turn.wanted = True
            self._changed.notify_all()
        return None

    def run_at_once(self, job: Job) -> bool:
        """Run a short job now, by a thread that runs no other; return False where anybody waits, or no slot is free."""
        with self._lock:
            if self._waiting or self._lent or not self._has_place(self._account(job)):
                return False
            turn = self._begin(job)
        try:
            job.work(turn)
        finally:
            following = self._next(turn, job)
            if following is not None:
                self._start(partial(self.run, *following))
        return True

    def start(self, job: Job) -> None:
        """Have a job run by another thread, now or when its turn comes."""
        turn = self.offer(job)
        if turn is not None:
            self._start(lambda: self.run(turn, job))

    def queue(self, job: Job) -> None:
        """Have a job run when its turn comes and one that runs now ends: by that thread, as a new one takes time."""
        with self._lock:
            self._enqueue(job, first=False)
            for turn in self._running:
                turn.wanted = True
            self._changed.notify_all()

    def run(self, turn: Turn, job: Job) -> None:
        """Run a job whose turn it is, and then those that wait, as long as this thread has their turn."""
        following: tuple[Turn, Job] | None = (turn, job)
        while following is not None:
            turn, job = following
            try:
                job.work(turn)
            finally:
                following = self._next(turn, job)

    def pass_on(self, turn: Turn, job: Job, *, in_python: bool = False) -> None:
        """See Turn.pass_on; `in_python` says that the call needs the interpreter most of the time."""
        with self._lock:
            self._charge(turn, job)
            if not self._waiting or self._parked >= PARKED:
                turn.wanted = self._is_fresh_beside(turn)
                if turn.wanted and in_python:
                    self._give_way(turn)
                return
            resume = threading.Event()
            again = Job(job.owner, job.session, job.work, job.weight, job.interactive, turn, resume)
            self._leave(turn, job)
            self._wait_on(again)
            following = self._pop()
            if following is again:
                self._enter(turn, job)
                return
            self._parked += 1
            if following is not None:
                self._go_on_with(following)
        resume.wait()

    def lend(self, turn: Turn, job: Job) -> None:
        """Lend the slot to the next waiting or arriving call, until `take_back`."""
        with self._lock:
            self._charge(turn, job)
            self._leave(turn, job)
            self._lent += 1
            following = self._pop()
            if following is not None:
                self._go_on_with(following)

    def begins_long(self, job: Job, seconds: float) -> bool:
        """Return whether the owner's next library call may begin now; waits at most so long for the one before it."""
        with self._lock:
            owner = self._account(job)
            if owner.long and not self._long_ended.wait_for(lambda: not owner.long, seconds):
                return False
            owner.long = True
            return True

    def take_back(self, turn: Turn, job: Job, *, ends_long: bool) -> None:
        """Return with a place again, in the owner's turn; the time since `lend` is the owner's."""
        resume = threading.Event()
        with self._lock:
            owner, _ = self._charge(turn, job)
            self._lent -= 1
            if ends_long:
                owner.long = False
                self._long_ended.notify_all()
            if self._has_place(owner):
                self._enter(turn, job)
                return
            again = Job(job.owner, job.session, job.work, job.weight, job.interactive, turn, resume)
            self._wait_on(again)
            self._parked += 1
            for other in self._running:
                other.wanted = True
        resume.wait()

    # -- under the lock -----------------------------------------------------------------------------------------

    def _is_fresh_beside(self, turn: Turn) -> bool:
        """True if a call of another owner has just begun."""
        horizon = time.monotonic() - self._fresh_s
        return any(other.began > horizon and other.owner != turn.owner for other in self._running)

    def _give_way(self, turn: Turn) -> None:
        """Wait until no call of another owner is fresh, then let the turn work for as long as it has waited."""
        begun = time.monotonic()
        if begun < turn.works_until:
            return
        self.giving_way += 1
        self._changed.wait_for(lambda: self._waiting or not self._is_fresh_beside(turn), self._fresh_s)
        self.giving_way -= 1
        turn.since = time.monotonic()
        turn.works_until = 2 * turn.since - begun

    def _begin(self, job: Job) -> Turn:
        turn = Turn(self, job)
        self._enter(turn, job)
        self._account(job).running += 1
        return turn

    def _enter(self, turn: Turn, job: Job) -> None:
        """Give the turn a slot; others' calls learn of it at their next checkpoint."""
        turn.wanted = bool(self._waiting)
        for other in self._running:
            if other.owner != turn.owner:
                other.wanted = turn.wanted = True
        self._running.add(turn)
        self._account(job).at_work += 1

    def _leave(self, turn: Turn, job: Job) -> None:
        """Take its place away; a turn that has none, as what takes no time runs in, loses nothing."""
        if turn in self._running:
            self._running.remove(turn)
            self._account(job).at_work -= 1
            self._changed.notify_all()

    def _has_place(self, owner: _Owner) -> bool:
        """True if a call of the owner may begin at once."""
        return len(self._running) < self._slots and owner.at_work < self._most_of_owner and not owner.waits

    def _wait_on(self, again: Job) -> None:
        """Queue a call that is in the middle of its work: before its owner's others, behind its session's.

        Those come after it in the session whenever they run; what they have to do is to take their place there.
        """
        self._enqueue(again, first=not again.session)

    def _account(self, job: Job) -> _Owner:
        owner = self._owners.get(job.owner)
        if owner is None:
            # Who comes anew goes first: with the time of a round, as the others had theirs.
            owner = self._owners[job.owner] = _Owner(deficit=QUANTUM_S * job.weight)
            self._owners.move_to_end(job.owner, last=False)
        owner.weight = job.weight
        return owner

    def _enqueue(self, job: Job, *, first: bool) -> None:
        self._account(job).push(job, first=first)
        self._waiting += 1

    def _pop(self) -> Job | None:
        """Return the next job if a slot is free."""
        if not any(owner.waits and owner.at_work < self._most_of_owner for owner in self._owners.values()):
            return None
        while True:
            name, owner = next(iter(self._owners.items()))
            may = owner.waits and owner.at_work < self._most_of_owner
            if not may or owner.deficit <= 0:
                if may:
                    owner.deficit += QUANTUM_S * owner.weight
                self._owners.move_to_end(name)
                continue
            self._waiting -= 1
            return owner.pop()

    def _charge(self, turn: Turn, job: Job) -> tuple[_Owner, float]:
        """Count what a turn has worked since it was last charged as its owner's; the owner, and the seconds."""
        now = time.monotonic()
        owner = self._account(job)
        spent, turn.since = now - turn.since, now
        # What was worked while nobody waited is nobody's loss.
        owner.deficit = max(owner.deficit - spent, -DEBT_S) if self._waiting else QUANTUM_S * owner.weight
        lane = owner.lane(job)
        if lane is not None:
            lane.deficit = max(lane.deficit - spent, -DEBT_S)
        return owner, spent

    def _go_on_with(self, following: Job) -> None:
        """Give a free slot to a waiting job."""
        if following.turn is None:
            begun = self._begin(following)
            self._start(lambda: self.run(begun, following))
        else:
            self._wake(following)

    def _wake(self, job: Job) -> None:
        assert job.turn is not None
        assert job.resume is not None
        self._parked -= 1
        job.turn.since = time.monotonic()
        self._enter(job.turn, job)
        job.resume.set()

    def _next(self, turn: Turn, job: Job) -> tuple[Turn, Job] | None:
        with self._lock:
            owner, spent = self._charge(turn, job)
            self._seconds += (spent - self._seconds) / 16
            self._leave(turn, job)
            owner.running -= 1
            following = self._pop() if self._waiting else None
            if not owner.running and not owner.waits:
                self._owners.pop(job.owner, None)
            if following is None:
                return None
            if following.turn is None:
                return self._begin(following), following
            self._wake(following)
            return None


def _count(owner: _Owner | None) -> int:
    return 0 if owner is None else owner.waits


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="opbox-turn", daemon=True).start()
