"""Values of other libraries as numpy arrays: tensors of torch, data frames of pandas, and what speaks DLPack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol.excerpt import excerpt

__all__ = ["from_capsule", "from_dlpack", "host_numbers", "host_values", "is_array"]

CPU = 1
"""DLPack's device number of this process's memory."""


def is_array(value: Any) -> bool:
    """Return whether a value is an array of any library, and no list or mapping of arrays."""
    return not isinstance(value, Mapping) and any(
        hasattr(value, name) for name in ("asnumpy", "__array__", "__dlpack__", "to_numpy")
    )


def host_values(value: Any) -> Any:
    """A value that numpy reads: a numpy array for arrays of other libraries, anything else as it is.

    Tensors of torch may need gradients, be on a GPU, or have type bfloat16, which becomes float32; numpy reads none of
    these itself.

    Args:
        value: a number, nested lists, or an array of any library.

    Raises:
        TypeError: an array whose values numpy cannot have, or a Symbol.
    """
    if isinstance(value, np.ndarray | np.generic | list | tuple | int | float):
        return value
    if hasattr(value, "list_arguments"):
        raise TypeError(f"expected values, got {value!r}, which has none: bind it first, or use its eval()")
    if hasattr(value, "asnumpy"):
        return value.asnumpy()
    if hasattr(value, "to_numpy"):
        return value.to_numpy()
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype).endswith("bfloat16"):
            value = value.float()
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return from_dlpack(value) if hasattr(value, "__dlpack__") else value


def host_numbers(value: Any, subject: str, dtype: Any = None) -> np.ndarray[Any, Any]:
    """A numpy array of numbers from a number, nested lists, or an array of any library; new where `dtype` is passed.

    Args:
        value: the numbers; None stands for NaN, as in MXNet.
        subject: what they are for, for the error.
        dtype: the element type; the values' own when None.

    Raises:
        TypeError: something else, such as text, lists of unequal lengths, or numbers beyond the type.
    """
    try:
        values = host_values(value)
    except TypeError as error:
        raise TypeError(f"{subject}: {error}") from None
    try:
        numbers = np.asarray(values) if dtype is None else np.array(values, dtype=dtype, order="C", copy=True)
        if dtype is None and numbers.dtype.kind in "OUS":  # None among them, integers beyond 64 bits, numbers as text
            numbers = numbers.astype(np.float64)
    except OverflowError:
        bounds = f" that {np.dtype(dtype)} can hold" if dtype is not None else " that float64 can hold"
        raise TypeError(f"{subject}: expected numbers{bounds}, got {excerpt(values)}") from None
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or (dtype is None and numbers.dtype.kind in "cMm"):
        raise TypeError(
            f"{subject}: expected a number, lists of numbers of equal lengths, or an array, got {excerpt(values)}"
        )
    return numbers


def from_dlpack(value: Any) -> np.ndarray[Any, Any]:
    """The values of what has `__dlpack__`, copied to this process's memory if they are elsewhere.

    Raises:
        TypeError: numpy cannot have them, such as those of an unknown type.
    """
    elsewhere = value.__dlpack_device__()[0] != CPU
    try:
        return np.from_dlpack(value, device="cpu") if elsewhere else np.from_dlpack(value)
    except (BufferError, RuntimeError) as error:
        raise TypeError(f"from_dlpack: {type(value).__name__}: {error}") from None


def from_capsule(capsule: Any) -> np.ndarray[Any, Any]:
    """The values of a DLPack capsule, as `torch.utils.dlpack.to_dlpack` returns one; it can be read once."""
    return from_dlpack(_Capsule(capsule))


class _Capsule:
    """An object with `__dlpack__` around a bare capsule, as numpy expects."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)
