"""libgomp's threads, which oneDNN and compiled kernels share: how soon they sleep, and when they end."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SPINS", "bounded_spinning", "release_threads"]

SPINS = "3000"
"""Rounds for which a thread without work spins before it sleeps: some 50 us, as long as it takes to wake one."""
_FILE = "libgomp.so.1"
_SOFT_PAUSE = 1
"""`omp_pause_soft`."""


@contextmanager
def bounded_spinning() -> Iterator[None]:
    """A block that may load libgomp: its threads then sleep soon after their work, unless the user says otherwise.

    By default they spin for milliseconds, on cores that NumPy's products or other processes want meanwhile: with two
    threads on two busy cores a network took seven times as long. libgomp reads the variables when it is loaded.

    A second thread of the process that computes has threads of its own, until `release_threads`. As soon as there are
    more of all these than cores, libgomp's spin for 100 rounds, which bridges no gap between two kernels: two layers of
    LSTM took 1.9 times as long. With the policy "active" it is 1,000. That policy is not left in the environment, where
    other libraries would spin for ever.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
    try:
        yield
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)


def release_threads() -> None:
    """End the threads that have shared the calling thread's work; its next kernel makes them anew.

    libgomp counts the threads of all that have computed, and lets them sleep sooner when they are more than the cores.
    """
    try:
        libgomp = ctypes.CDLL(_FILE, mode=os.RTLD_NOLOAD)
        libgomp.omp_pause_resource_all(_SOFT_PAUSE)
    except (OSError, AttributeError):
        return  # it is not loaded, or from before OpenMP 5
