"""Measures the candidates for a convolution: each runs once, and again in a few rounds unless that run took long.

They run on a stream of their own beside the calls of sessions, so the best round counts. Their memory is the problem's
arrays and one workspace, at most half of what is free on the device, and goes back when the problem has been measured.
Problems that would take long anyway are not measured.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy the name bfloat16
import numpy as np

from ..backend.graphs import undisturbed
from ..cuda.cublas import lent_workspace, workspace_bytes
from .algorithms import WORKSPACE_ALIGNMENT, ConvolutionProblem, UsableAlgorithm, aligned
from .library import DeviceHandle, device
from .planned import ConvolutionArrays, RefusedConvolution
from .products import planned

__all__ = ["Abandoned", "is_worth_measuring", "measured_milliseconds", "scratch_arrays"]

MAX_MULTIPLICATIONS = 1 << 40
"""Of a problem that is measured: 40 ms of an H100 in single precision, and seconds where an algorithm is slow."""
MAX_SCANNED = 1 << 43
"""The same, if an algorithm visits each element of the side that the kernel slides over with each of its taps."""
MAX_STRIDE = 32
"""With a larger stride most of the wide side is not touched, which some algorithms find out at length."""
MAX_FIRST_MS = 200.0
"""A candidate whose first run takes longer is not run again."""
MAX_PROBLEM_SECONDS = 2.0
"""After this time no further candidate of a problem is begun."""
ROUND_MS = 4.0
"""A round calls a candidate as often as this time allows, at most CALLS times."""
ROUNDS, CALLS = 5, 4
FILL_BYTES, MAX_FILLS = 32 << 20, 400
"""Bytes of memory that are filled before each round to keep the device busy, and how often at most: 4 ms of an H100."""
SPARE_TIME = 4
"""The fills take so many times as long as the host takes to queue the calls: it queues the fills meanwhile too."""
FREE_SHARE = 2
"""A measurement takes at most the device's free memory, divided by this number."""
_MEMORY_ALLOCATION = 2
"""CUDA's number of the error that there is too little memory."""
_POLL_SECONDS = 0.0005, 0.005
"""Between two looks at whether a run has ended: first, and at most."""


class Abandoned(Exception):
    """Nobody needs the measurement any more, or somebody needs its memory."""


def is_worth_measuring(problem: ConvolutionProblem) -> bool:
    """Return whether a problem's algorithms are measured: not where each run may take long."""
    wide, weight, narrow = problem.shapes
    positions = weight[0] * math.prod(weight[1:])
    multiplications = positions * narrow[0] * math.prod(narrow[2:])
    scanned = positions * wide[0] * math.prod(wide[2:])
    strides = problem.window[0]
    return multiplications <= MAX_MULTIPLICATIONS and scanned <= MAX_SCANNED and max(strides) <= MAX_STRIDE


@contextlib.contextmanager
def scratch_arrays(
    cupy: Any, problem: ConvolutionProblem, workspace: int, *, products: bool = False
) -> Iterator[ConvolutionArrays | None]:
    """Arrays of a problem's sizes and a workspace, on the current device; None where that is short of memory.

    At the block's end, what the current stream still computes is waited for. With `products`, those that run on the
    current stream within the block have a workspace of their own for cuBLAS too.
    """
    dtype = np.dtype(problem.dtype)
    shapes = [
        (n, *spatial, channels) if problem.last else (n, channels, *spatial) for n, channels, *spatial in problem.shapes
    ]
    shapes += [(problem.shapes[2][1],)] if problem.biased else []
    sizes = [-(-math.prod(shape) * dtype.itemsize // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT for shape in shapes]
    workspace = aligned(max(workspace + WORKSPACE_ALIGNMENT, FILL_BYTES))
    with undisturbed():  # the first product's handle allocates
        of_cublas = workspace_bytes(cupy) if products else 0
    nbytes = sum(sizes) + workspace + of_cublas
    if nbytes > cupy.cuda.runtime.memGetInfo()[0] // FREE_SHARE:
        yield None
        return
    runtime = cupy.cuda.runtime
    try:
        with undisturbed():
            # Not of the pool, which would keep it.
            address = runtime.malloc(nbytes)
    except runtime.CUDARuntimeError as error:
        if error.status != _MEMORY_ALLOCATION:
            raise
        yield None
        return
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, device())

    def array(k: int) -> Any:
        return cupy.ndarray(shapes[k], dtype, cupy.cuda.MemoryPointer(memory, sum(sizes[:k])))

    end = cupy.cuda.MemoryPointer(memory, sum(sizes))
    scratch = cupy.ndarray((workspace,), np.uint8, end)
    lent: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if products:
        part = cupy.cuda.UnownedMemory(address + nbytes - of_cublas, of_cublas, None, device())
        lent = lent_workspace(cupy, cupy.cuda.get_current_stream().ptr, cupy.cuda.MemoryPointer(part, 0))
    try:
        with lent:
            yield ConvolutionArrays(array(0), array(1), array(2), scratch, array(3) if problem.biased else None)
    finally:
        # Freeing waits for the device with the lock, so what runs is waited for without it.
        with contextlib.suppress(runtime.CUDARuntimeError):
            cupy.cuda.get_current_stream().synchronize()
        with contextlib.suppress(runtime.CUDARuntimeError), undisturbed():
            runtime.free(address)


def measured_milliseconds(
    handle: DeviceHandle,
    problem: ConvolutionProblem,
    candidates: Sequence[UsableAlgorithm],
    arrays: ConvolutionArrays,
    is_abandoned: Callable[[], bool],
    max_first_ms: float = MAX_FIRST_MS,
) -> dict[UsableAlgorithm, float]:
    """The milliseconds of a call of each candidate on the current stream; without those that cuDNN refuses.

    Args:
        handle: for these calls alone.
        is_abandoned: looked at while the device computes.
        max_first_ms: a candidate whose first run takes as long is not run again.

    Raises:
        Abandoned: `is_abandoned` said so.
    """
    began, times = time.monotonic(), dict[UsableAlgorithm, float]()
    for algorithm in candidates:
        if times and time.monotonic() - began > MAX_PROBLEM_SECONDS:
            break
        call = planned(handle, problem, algorithm).bind(arrays)
        with contextlib.suppress(RefusedConvolution):
            times[algorithm] = _milliseconds(handle.cupy, call, arrays.workspace, is_abandoned, max_first_ms)
    return times


def _milliseconds(
    cupy: Any,
    call: Callable[[], Any],
    workspace: Any,
    is_abandoned: Callable[[], bool],
    max_first_ms: float,
) -> float:
    """The device's time for a call: of the first, or the best of a few rounds behind it."""
    end = cupy.cuda.Event()
    with undisturbed():
        call()  # loads the kernel, which may wait for the whole device
    began = time.monotonic()
    end.record()
    _wait(end, is_abandoned)
    first = 1000 * (time.monotonic() - began)
    if first >= max_first_ms:
        return first
    count = max(1, min(CALLS, int(ROUND_MS / max(first, 0.001))))
    stream = cupy.cuda.get_current_stream().ptr
    fill = partial(cupy.cuda.runtime.memsetAsync, workspace.data.ptr, 0, FILL_BYTES, stream)
    fill_ms = _queued_milliseconds(cupy, [fill], [fill] * 8, is_abandoned) / 8
    began = time.monotonic()
    call()
    queuing_ms = 1000 * (time.monotonic() - began)
    fills = min(MAX_FILLS, math.ceil(SPARE_TIME * count * queuing_ms / fill_ms)) if fill_ms else 1
    return min(_queued_milliseconds(cupy, [fill] * fills, [call] * count, is_abandoned) / count for _ in range(ROUNDS))


def _queued_milliseconds(
    cupy: Any,
    before: Sequence[Callable[[], Any]],
    calls: Sequence[Callable[[], Any]],
    is_abandoned: Callable[[], bool],
) -> float:
    """The device's milliseconds for all calls, which are queued while it is busy with those before.

    Queuing a call takes the host longer than a small convolution takes the device: on an idle device the time would be
    the host's, and about the same for every candidate. A graph of the calls would do too, but while one is recorded,
    no other library of the process may wait for the device.
    """
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    for call in before:
        call()
    start.record()
    for call in calls:
        call()
    end.record()
    _wait(end, is_abandoned)
    return float(cupy.cuda.get_elapsed_time(start, end))


def _wait(event: Any, is_abandoned: Callable[[], bool]) -> None:
    seconds, most = _POLL_SECONDS
    while not event.done and not is_abandoned():
        time.sleep(seconds)
        seconds = min(2 * seconds, most)
    if is_abandoned():
        raise Abandoned
