"""libgomp's threads, which compiled kernels and oneDNN share: their functions, how soon they sleep, when they end."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .kernel_text import kernel_text

__all__ = ["PAUSES", "Threads", "bounded_spinning", "load_threads", "release_threads", "rounds_of"]

SPIN_NS = 70_000
"""Time for which a thread without work spins before it sleeps, as long as it takes to wake one."""
SPINS = 3000
"""Rounds of that where they cannot be measured: a processor's `pause` takes 12 to 50 ns."""
MIN_ROUNDS, MAX_ROUNDS = 1000, 10_000
"""Minimum and maximum number of rounds that count as a measurement."""
_COUNT = 1000
PAUSES = kernel_text("pauses.c")
"""What a thread of libgomp's does in a round, beside looking for work."""
_FILE = "libgomp.so.1"
_BUNDLED = Path(__file__).parents[1] / "libgomp" / _FILE
"""The library that a wheel brings, for machines that have none. Once it is loaded, it is what others that are linked
with this name get."""
_SOFT_PAUSE = 1
"""`omp_pause_soft`."""


class Threads(ctypes.Structure):
    """Functions of libgomp for kernels: run a function in threads, a thread's number, how many there may be, and how
    many a region has, and the barrier between them."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("parallel", "number", "most", "count", "barrier")]


_FUNCTIONS = "GOMP_parallel", "omp_get_thread_num", "omp_get_max_threads", "omp_get_num_threads", "GOMP_barrier"
"""libgomp's names for them, in that order."""


def rounds_of(pauses: Callable[[int], object] | None) -> int:
    """Return how many rounds take SPIN_NS, by a function that pauses so many times, as `PAUSES` has it; or SPINS."""
    if pauses is None:
        return SPINS
    shortest = min(_nanoseconds(pauses) for _ in range(5))
    return max(MIN_ROUNDS, min(MAX_ROUNDS, SPIN_NS * _COUNT // max(1, shortest)))


def _nanoseconds(pauses: Callable[[int], object]) -> int:
    start = time.perf_counter_ns()
    pauses(_COUNT)
    return time.perf_counter_ns() - start


def load_threads(spins: Callable[[], int], files: Sequence[str] = (_FILE, str(_BUNDLED))) -> Threads | None:
    """Return libgomp's functions, loaded where the process has not loaded it; None where there is no libgomp.

    Args:
        spins: as for `bounded_spinning`.
        files: the library's files, of which the first is taken that can be loaded.
    """
    for file in files:
        try:
            with bounded_spinning(spins):
                libgomp = ctypes.CDLL(file)
            functions = [getattr(libgomp, name) for name in _FUNCTIONS]
        except (OSError, AttributeError):  # not there, or a library of other functions
            continue
        return Threads(*[ctypes.cast(function, ctypes.c_void_p).value for function in functions])
    return None


@contextmanager
def bounded_spinning(spins: Callable[[], int]) -> Iterator[None]:
    """A block that may load libgomp: its threads then sleep soon after their work, unless the user says otherwise.

    By default they spin for milliseconds, on cores that NumPy's products or other processes want meanwhile: with two
    threads on two busy cores a network took seven times as long. libgomp reads the variables when it is loaded.

    A second thread of the process that computes has threads of its own, until `release_threads`. As soon as there are
    more of all these than cores, libgomp's spin for 100 rounds, which bridges no gap between two kernels: two layers of
    LSTM took 1.9 times as long. With the policy "active" it is 1,000. That policy is not left in the environment, where
    other libraries would spin for ever; once libgomp is loaded, nothing is set.
    """
    if "OMP_WAIT_POLICY" in os.environ or _loaded() is not None:
        yield
        return
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = str(spins())
    os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
    try:
        yield
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)


def release_threads() -> None:
    """End the threads that have shared the calling thread's work; its next kernel makes them anew.

    libgomp counts the threads of all that have computed, and lets them sleep sooner when they are more than the cores.
    """
    libgomp = _loaded()
    if libgomp is not None:
        with suppress(AttributeError):  # from before OpenMP 5
            libgomp.omp_pause_resource_all(_SOFT_PAUSE)


def _loaded() -> ctypes.CDLL | None:
    """The library, if the process has it."""
    try:
        return ctypes.CDLL(_FILE, mode=os.RTLD_NOLOAD)
    except OSError:
        return None
