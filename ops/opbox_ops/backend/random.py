"""A session's random numbers: a stream for operators called one by one, and a stream for each node of an executor.

All are Philox streams (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011): a key chooses the stream, and
a counter the place in it, so that any place is reached at once and nothing is noted of what was drawn before.

    key       (seed, number of the executor since the seed · 2**32 + number of the step)
    counter   (numbers drawn, number of the loop's body, step of the loop, run)

Where a kernel on a GPU takes several attempts at a number, the second word's upper half counts them
(`cuda.random_draws`).

An executor gets its number when it first draws after the seed, and counts the runs in which it draws. So the same calls
after the same seed draw the same numbers, executors and nodes never the same ones, and what a run has drawn can be
drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["NodeStream", "NodeStreams", "RandomSource", "RandomStream"]

PLACE_WORDS = 3
"""Words that a recorded draw reads from the device: the seed, the executor's part of the key, the run."""


class RandomStream(Protocol):
    """A device's Philox generator; numbers are written into given arrays."""

    def seed(self, seed: int) -> None:
        """Begin a stream of its own for this seed."""

    def place(self, key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
        """Go to a place of a stream; numbers of 64 bits."""

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        """Fill `out` from [low, high)."""

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        """Fill `out` from the normal distribution."""

    def exponential(self, out: Any, scale: Any) -> None:
        """Fill `out` from the exponential distribution of mean `scale`; ValueError where that is below 0."""

    def gamma(self, out: Any, shape: Any, scale: Any) -> None:
        """Fill `out` from the gamma distribution; ValueError where a parameter is below 0."""

    def state(self) -> dict[str, Any]:
        """Where the stream is, as plain values, for `restore` in another process."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was asked for."""

    @property
    def generator(self) -> Any:
        """The library's Generator, for other distributions."""


class RandomSource:
    """A session's random numbers. Drawn from itself, it is the stream of operators that are called one by one.

    Args:
        make_stream: makes a generator of the device.
        seed: an integer of any sign; its last 64 bits count.

    Attributes:
        number: the seed, without its sign.
        epoch: how often it was seeded.
        nodes: the generator that the nodes of executors share.
        holder: the node whose place `nodes` is at.
    """

    def __init__(self, make_stream: Callable[[], RandomStream], seed: int) -> None:
        self._single = make_stream()
        self.uniform, self.normal = self._single.uniform, self._single.normal
        self.exponential, self.gamma = self._single.exponential, self._single.gamma
        self.nodes = make_stream()
        self.epoch = 0
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin all streams anew."""
        self.number = seed % 2**64
        self._single.seed(self.number)
        self.epoch += 1
        self._executors = self._moves = 0
        self.holder: NodeStream | None = None

    def snapshot(self) -> dict[str, int]:
        """The random source's position, for `resume` in another process; `NodeStreams.snapshot` has the executors'.

        The stream of operators that are called one by one goes on at a new place, which both know.
        """
        self._moves += 1
        self._move()
        return {"number": self.number, "executors": self._executors, "moves": self._moves}

    def resume(self, snapshot: Mapping[str, int]) -> None:
        """Go on where `snapshot` was asked for."""
        self.seed(snapshot["number"])
        self._executors, self._moves = snapshot["executors"], snapshot["moves"]
        self._move()

    def state(self) -> dict[str, Any]:
        """Where all streams are but those of executors (`NodeStreams.snapshot`); unlike `snapshot` it moves none."""
        place = {"number": self.number, "executors": self._executors, "moves": self._moves}
        return {**place, "stream": self._single.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was asked for."""
        self.seed(state["number"])
        self._executors, self._moves = state["executors"], state["moves"]
        self._single.restore(state["stream"])

    def _move(self) -> None:
        # No executor has the number 0.
        self._single.place((self.number, 0), (0, 0, 0, self._moves))

    @property
    def generator(self) -> Any:
        """See RandomStream."""
        return self._single.generator

    def reserve(self, blocks: int) -> Any:
        """The next blocks of a GPU's stream, for a kernel that draws from them itself (`cuda.random.StreamPlace`)."""
        stream: Any = self._single
        return stream.reserve(blocks)

    def enrol(self) -> int:
        """The next number of an executor, from 1."""
        self._executors += 1
        return self._executors


class NodeStreams:
    """The streams of an executor's nodes, or of those of a loop's body in it.

    Args:
        source: the session's.
        around: the streams of the executor, for a body; None for the executor's own.

    Attributes:
        records_draws: whether the last `recording` had any.
    """

    def __init__(self, source: RandomSource, around: NodeStreams | None = None) -> None:
        self.source = source
        self.tick = 0  # changes with the place of the streams
        self._root: NodeStreams = self if around is None else around._root
        self._epoch = self._executor = self._run = self._seed = self._step = self._body = self._bodies = 0
        self._around_tick = -1
        self._drawn = self._recording = self.records_draws = False
        self._where: Any = None
        self._settled: tuple[int, int, int] | None = None
        if around is not None:
            self._root._bodies += 1
            self._body = self._root._bodies

    def begin(self) -> None:
        """The executor's next run."""
        if self._epoch != self.source.epoch:
            self._executor = 0
        elif self._drawn:
            self._run += 1
        self._drawn = False
        self.tick += 1

    def begin_again(self) -> None:
        """Draw this run's numbers from their beginning: what was drawn of them is of no use to anybody."""
        self.tick += 1

    @contextmanager
    def recording(self, allocate: Callable[[tuple[int, ...], str], Any]) -> Iterator[None]:
        """The block in which draws are recorded for later runs: they find their place on the device (`settle`).

        Args:
            allocate: makes the array that has it.
        """
        if self._where is None:
            self._where = allocate((PLACE_WORDS,), "uint64")
        self._recording, self.records_draws = True, False
        self.begin_again()
        try:
            yield
        finally:
            self._recording = False
            self.begin_again()

    def settle(self) -> None:
        """Write this run's place for recorded draws, which are about to run."""
        self._enrol()
        self._drawn = True
        place = self._seed, self._executor << 32, self._run
        if place != self._settled:
            stream: Any = self.source.nodes
            stream.write_place(self._where, *place)
            self._settled = place

    def snapshot(self) -> list[int] | None:
        """Return the executor's position, for `resume`; None when the executor has drawn nothing since the seed."""
        if not self._executor or self._epoch != self.source.epoch:
            return None
        return [self._executor, self._run, int(self._drawn)]

    def resume(self, snapshot: Sequence[int]) -> None:
        """Go on where `snapshot` was asked for."""
        self._epoch, self._seed = self.source.epoch, self.source.number
        self._executor, self._run = snapshot[:2]
        self._drawn = bool(snapshot[2])

    def advance(self) -> None:
        """A body's next step in the executor's run."""
        if self._around_tick != self._root.tick:
            self._around_tick = self._root.tick
            self._step = 0
        else:
            self._step += 1
        self.tick += 1

    def stream(self, node: int) -> NodeStream:
        """The stream of the node of this number."""
        return NodeStream(self, node)

    def _enrol(self) -> None:
        if not self._executor:
            source = self.source
            self._epoch, self._seed, self._run = source.epoch, source.number, 0
            self._executor = source.enrol()

    def place(self, node: int) -> None:
        """Take the source's generator to the place of a node in this run and step."""
        root = self._root
        if root._recording:
            root.records_draws = True
            stream: Any = self.source.nodes
            stream.place_recorded(root._where, node, (self._body, self._step))
            return
        root._enrol()
        root._drawn = True
        key = root._seed, (root._executor << 32) + node
        self.source.nodes.place(key, (0, self._body, self._step, root._run))


class NodeStream:
    """The random numbers of one node of an executor: what its compute finds as `ctx.random`.

    Args:
        streams: those of the nodes around it.
        node: its number among them.
    """

    __slots__ = ("_node", "_streams", "_tick")

    def __init__(self, streams: NodeStreams, node: int) -> None:
        self._streams = streams
        self._node = node
        self._tick = 0

    def inside(self) -> NodeStreams:
        """The streams of a body that this node runs."""
        return NodeStreams(self._streams.source, self._streams)

    def _placed(self) -> RandomStream:
        streams = self._streams
        source = streams.source
        if source.holder is not self or self._tick != streams.tick:
            streams.place(self._node)
            source.holder, self._tick = self, streams.tick
        return source.nodes

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        """See RandomStream."""
        self._placed().uniform(out, low, high)

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        """See RandomStream."""
        self._placed().normal(out, loc, scale)

    def exponential(self, out: Any, scale: Any) -> None:
        """See RandomStream."""
        self._placed().exponential(out, scale)

    def gamma(self, out: Any, shape: Any, scale: Any) -> None:
        """See RandomStream."""
        self._placed().gamma(out, shape, scale)

    @property
    def generator(self) -> Any:
        """See RandomStream."""
        return self._placed().generator

    def reserve(self, blocks: int) -> Any:
        """See RandomSource."""
        stream: Any = self._placed()
        return stream.reserve(blocks)
