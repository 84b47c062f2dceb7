"""Checks before a kernel's launch, on any device: arguments against the signature, grid, block, shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError, DTypeError

from .signature import Argument

__all__ = ["checked_arguments", "checked_shared", "checked_sizes"]

MAX_THREADS = 1024
"""Threads of a block, as every CUDA device allows."""
MAX_SHARED = 227 << 10
"""Bytes of dynamic shared memory: the most that a block may have on any device, an H100. A device has its own limit."""
# The other limits of every CUDA device since compute capability 3.
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)


def checked_sizes(
    kernel: str, grid: Sequence[int], block: Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three sizes each.

    Raises:
        BadRequestError: not three sizes of 1 or more, or more than a CUDA device takes.
    """
    checked = []
    for what, sizes, limits in (("grid", grid, _GRID_LIMITS), ("block", block, _BLOCK_LIMITS)):
        triple = tuple(sizes)
        if len(triple) != 3 or not all(isinstance(n, int | np.integer) and n >= 1 for n in triple):
            raise BadRequestError(f"kernel {kernel!r}: {what}: expected three sizes of 1 or more, got {triple}")
        if what == "block" and math.prod(triple) > MAX_THREADS:
            raise BadRequestError(f"kernel {kernel!r}: expected at most {MAX_THREADS} threads a block, got {triple}")
        if any(n > limit for n, limit in zip(triple, limits, strict=True)):
            raise BadRequestError(f"kernel {kernel!r}: {what}: expected at most {limits}, got {triple}")
        checked.append((int(triple[0]), int(triple[1]), int(triple[2])))
    return checked[0], checked[1]


def checked_shared(kernel: str, nbytes: int, most: int = MAX_SHARED) -> int:
    """The bytes of dynamic shared memory.

    Args:
        most: what the device and the kernel leave for it.

    Raises:
        BadRequestError: the device would not start the kernel.
    """
    if not 0 <= nbytes <= most:
        raise BadRequestError(f"kernel {kernel!r}: expected 0 to {most} bytes of shared memory, got {nbytes}")
    return nbytes


def checked_arguments(kernel: str, arguments: Sequence[Argument], values: Sequence[Any], array_type: type) -> list[Any]:
    """The values as the kernel takes them: arrays of `array_type` as they are, numbers in the signature's types.

    Raises:
        BadRequestError: another number of them, no array where there is a pointer, or an array with gaps.
        DTypeError: an array's element type is not the signature's, or a number does not fit its type.
    """
    if len(values) != len(arguments):
        signature = ", ".join(map(str, arguments))
        raise BadRequestError(
            f"kernel {kernel!r}: expected {len(arguments)} arguments ({signature}), got {len(values)}"
        )
    checked: list[Any] = []
    for argument, value in zip(arguments, values, strict=True):
        subject = f"kernel {kernel!r}: argument {argument.name!r}"
        if argument.is_pointer:
            _check_array(subject, argument, value, array_type)
            checked.append(value)
        else:
            checked.append(_number(subject, argument, value))
    return checked


def _check_array(subject: str, argument: Argument, value: Any, array_type: type) -> None:
    if not isinstance(value, array_type):
        raise BadRequestError(f"{subject}: expected an array, got {value!r}")
    array: Any = value
    if np.dtype(array.dtype) != argument.dtype:
        raise DTypeError(f"{subject}: expected {argument.dtype}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise BadRequestError(f"{subject}: expected a contiguous array: copy it first")


def _number(subject: str, argument: Argument, value: Any) -> Any:
    expected = f"{subject}: expected a number that fits {argument.c_type}"
    if hasattr(value, "shape") and value.shape:
        raise DTypeError(f"{expected}, got an array of shape {tuple(value.shape)}")
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, bool | int | float):
        raise DTypeError(f"{expected}, got {value!r}")
    if argument.dtype.kind in "iu":
        limits = np.iinfo(argument.dtype)
        if value != value // 1 or not limits.min <= value <= limits.max:
            raise DTypeError(f"{expected}, got {value!r}")
    return argument.dtype.type(value)
