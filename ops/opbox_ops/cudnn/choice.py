"""The algorithm that a convolution runs with: cuDNN's recommendation at once, and the fastest once it is known.

A plan is compiled without measuring. When it is bound, `search` is asked to measure the best few candidates behind it,
and a plan reserves the workspace of each of them. Every later call takes the fastest; recorded graphs are recorded
anew. What was measured stays on disk (`results`), so that the next process starts with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any

from opbox_protocol.errors import MXNetError

from ..backend.graphs import depend_on
from . import results, search
from .algorithms import ConvolutionProblem, UsableAlgorithm
from .library import DeviceHandle, current_handle, device, device_bytes
from .planned import ConvolutionArrays, PlannedConvolution, RefusedConvolution
from .products import PlannedProducts, planned, usable

__all__ = ["ConvolutionChoice", "bound", "choice_of"]

CANDIDATES = 8
"""Number of cuDNN's algorithms that are measured for a problem; a bias in the same call is one more, and products."""
MAX_CANDIDATE_WORKSPACE = 256 << 20
"""Bytes of workspace that a plan reserves for candidates which may turn out to be slow: it keeps the memory."""
CANDIDATE_SHARE = 64
"""A large device's memory divided by this is also reserved: Fourier transforms of large images need a gigabyte."""
_PROBLEMS = 4096
_lock = Lock()


class ConvolutionChoice:
    """The algorithms of a problem on a device, the one to take first.

    Attributes:
        version: another number whenever the order has changed.
        is_measured: whether the order is a measurement's, or none is wanted: it does not change any more.
    """

    def __init__(
        self, place: int, handle: DeviceHandle, problem: ConvolutionProblem, ranking: list[UsableAlgorithm]
    ) -> None:
        self.place, self.problem, self._handle = place, problem, handle
        self._ranking = tuple(ranking)
        self._most = max(MAX_CANDIDATE_WORKSPACE, device_bytes() // CANDIDATE_SHARE)
        self._planned: dict[UsableAlgorithm, PlannedConvolution | PlannedProducts] = {}
        self.version = 0
        self.is_measured = not problem.measured or len(self.candidates) < 2
        if not self.is_measured and (stored := self.stored()) is not None:
            self.take(stored)

    @property
    def best(self) -> UsableAlgorithm:
        """The algorithm to take."""
        return self._ranking[0]

    @property
    def candidates(self) -> list[UsableAlgorithm]:
        """The algorithms that a measurement compares: the best few of cuDNN's, as they are ranked now, and products."""
        most = max(self.best.workspace, self._most)
        fitting = [one for one in self._ranking if one.workspace <= most]
        numbers = list(dict.fromkeys((one.number, one.math) for one in fitting if not one.is_product))[:CANDIDATES]
        return [one for one in fitting if one.adds_bias or one.is_product or (one.number, one.math) in numbers]

    @property
    def workspace(self) -> int:
        """Bytes that a plan reserves: enough for every algorithm that may be taken while the plan is bound."""
        taken = self._ranking[:1] if self.is_measured else self.candidates
        return max(one.workspace for one in taken)

    def within(self, nbytes: int) -> UsableAlgorithm | None:
        """The best algorithm of at most `nbytes` of workspace; None where there is none."""
        return next((one for one in self._ranking if one.workspace <= nbytes), None)

    def planned(self, algorithm: UsableAlgorithm) -> PlannedConvolution | PlannedProducts:
        """The problem with one of its algorithms, for calls of this process's handle."""
        if algorithm not in self._planned:
            self._planned[algorithm] = planned(self._handle, self.problem, algorithm)
        return self._planned[algorithm]

    def take(self, fastest: UsableAlgorithm) -> None:
        """Put an algorithm first that was measured to be the fastest; the order is then final."""
        others = [one for one in self._ranking if one != fastest]
        changed = self.best != fastest
        self._ranking = (fastest, *others)
        self.is_measured = True
        self.version += changed

    def stored(self) -> UsableAlgorithm | None:
        """The fastest algorithm, where some process has measured it."""
        stored = results.read(self.place, self.problem)
        return next((one for one in self._ranking if (one.number, one.math, one.adds_bias) == stored), None)

    def refuse_bias(self) -> None:
        """Note that cuDNN does not add a bias to this problem."""
        self._ranking = tuple(one for one in self._ranking if not one.adds_bias)
        self.version += 1


def choice_of(problem: ConvolutionProblem) -> ConvolutionChoice | None:
    """A problem's choice on the current device; None where there is no cuDNN, or it has no algorithm for this problem.

    Nothing runs on the device, and nothing is allocated there.
    """
    if current_handle() is None:
        return None
    with _lock:  # two choices of one problem would not both be measured
        return _choice(device(), problem)


@lru_cache(maxsize=_PROBLEMS)
def _choice(place: int, problem: ConvolutionProblem) -> ConvolutionChoice | None:
    handle = current_handle()
    assert handle is not None
    ranking = usable(handle, problem)
    return ConvolutionChoice(place, handle, problem, ranking) if ranking else None


def bound(problem: ConvolutionProblem, arrays: ConvolutionArrays, nbytes: int) -> Callable[[], None]:
    """A call that computes a problem on the current device, with the algorithm that is the best whenever it runs.

    Args:
        nbytes: of workspace: those that were planned, perhaps for another device than the current.

    Raises:
        MXNetError: no algorithm runs it in as few.
    """
    choice = choice_of(problem)
    if choice is not None and choice.within(nbytes) is None:
        choice = choice_of(replace(problem, measured=False, most=nbytes))
    if choice is None:
        raise MXNetError(f"cuDNN: expected an algorithm of at most {nbytes:,} bytes of workspace on this device too")
    if not choice.is_measured:
        search.ask(choice)
    return _BoundConvolution(choice, arrays, nbytes)


class _BoundConvolution:
    """A call of a problem's best algorithm, of those whose workspace there is."""

    def __init__(self, choice: ConvolutionChoice, arrays: ConvolutionArrays, nbytes: int) -> None:
        self._choice, self._arrays, self._nbytes = choice, arrays, nbytes
        self._bind()

    def _bind(self) -> None:
        # The version first: an order that changes meanwhile is read once more.
        self._version = self._choice.version
        algorithm = self._choice.within(self._nbytes)
        assert algorithm is not None
        self._call: Callable[[], Any] = self._choice.planned(algorithm).bind(self._arrays)

    def __call__(self) -> None:
        if self._version != self._choice.version:
            self._bind()
        depend_on(self._choice, self._version)
        try:
            self._call()
        except RefusedConvolution:
            self._choice.refuse_bias()
            self._bind()
            self._call()
