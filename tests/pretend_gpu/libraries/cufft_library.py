"""libcufft as a library of C functions: transforms of complex64 rows, in a work area of the caller's alone.

It writes into the work area, and refuses a transform without one: a plan that shares it with an array shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..device import device_of, enter, next_id, note, queue, refuse, state
from .cublas_library import callback_library, status_of
from .memory import array_at

__all__ = ["library_file"]

_INVALID_PLAN, _INVALID_VALUE, _INVALID_SIZE = 1, 4, 8
"""CUFFT_INVALID_PLAN, _INVALID_VALUE and _INVALID_SIZE."""
_C2C = 0x29
_SIGNATURES = {
    "cufftCreate": "p",
    "cufftDestroy": "i",
    "cufftSetAutoAllocation": "ii",
    "cufftMakePlanMany": "iippiipiiiip",
    "cufftSetStream": "ip",
    "cufftSetWorkArea": "ip",
    "cufftExecC2C": "ippi",
}


@dataclass
class _FFTPlan:
    """A plan: what it was made for, and where it runs."""

    device: int
    allocates: bool = True
    length: int = 0
    rows: int = 0
    stream: int = 0
    work: int = 0

    @property
    def work_bytes(self) -> int:
        return 8 * self.length * self.rows


_plans: dict[int, _FFTPlan] = {}


def _create(place: int) -> int:
    enter("cufftCreate")
    number = next_id()
    _plans[number] = _FFTPlan(state.current)
    array_at(place, np.int32, 1)[0] = number
    return 0


def _destroy(plan: int) -> int:
    return 0 if _plans.pop(plan, None) is not None else _INVALID_PLAN


def _set_auto_allocation(plan: int, allocates: int) -> int:
    if plan not in _plans or _plans[plan].length:
        return _INVALID_PLAN
    _plans[plan].allocates = bool(allocates)
    return 0


def _make_plan_many(
    plan: int, rank: int, lengths: int, inembed: int, istride: int, idist: int, onembed: int, ostride: int, odist: int,
    kind: int, rows: int, size: int,
) -> int:  # fmt: skip
    enter("cufftMakePlanMany")
    refuse("cufftMakePlanMany")
    fresh = _plans.get(plan)
    if fresh is None or fresh.length or fresh.allocates:  # one that allocates would do so unseen
        return _INVALID_PLAN
    if rank != 1 or inembed or onembed or kind != _C2C:
        return _INVALID_VALUE
    length = int(array_at(lengths, np.int32, 1)[0])
    if min(length, rows) < 1 or (istride, idist, ostride, odist) != (1, length, 1, length):
        return _INVALID_SIZE
    fresh.length, fresh.rows = length, rows
    array_at(size, np.uint64, 1)[0] = fresh.work_bytes
    return 0


def _set_stream(plan: int, stream: int) -> int:
    if plan not in _plans:
        return _INVALID_PLAN
    _plans[plan].stream = stream
    return 0


def _set_work_area(plan: int, place: int) -> int:
    if plan not in _plans:
        return _INVALID_PLAN
    _plans[plan].work = place
    return 0


def _transform(plan: int, source: int, target: int, direction: int) -> int:
    enter("cufftExecC2C")
    called = _plans.get(plan)
    if called is None or not called.length or called.device != state.current:
        return _INVALID_PLAN
    length, rows, work, nbytes = called.length, called.rows, called.work, called.work_bytes
    places = (source, target, work)
    if (
        direction not in (-1, 1)
        or source % 8
        or target % 8
        or work % 256
        or any(device_of(place) != called.device or device_of(place + nbytes - 1) != called.device for place in places)
    ):
        return _INVALID_VALUE

    def run() -> None:
        array_at(work, np.uint8, nbytes)[...] = 0xCD
        numbers = array_at(source, np.complex64, rows, length).astype(np.complex128)
        result = np.fft.fft(numbers) if direction < 0 else np.fft.ifft(numbers, norm="forward")
        array_at(target, np.complex64, rows, length)[...] = result

    note("transform")
    queue(called.stream, run)
    return 0


_FUNCTIONS = (
    _create,
    _destroy,
    _set_auto_allocation,
    _make_plan_many,
    _set_stream,
    _set_work_area,
    _transform,
)


def library_file() -> str:
    """The file to load in the place of libcufft."""
    return callback_library(_SIGNATURES, [status_of(function) for function in _FUNCTIONS])
