"""Values of other libraries as numpy arrays: tensors of torch, data frames of pandas, and what speaks DLPack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["from_capsule", "from_dlpack", "host_values", "is_array"]

CPU = 1
"""DLPack's number of the memory that this process reads itself."""


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
        TypeError: an array whose values numpy cannot have.
    """
    if isinstance(value, np.ndarray | np.generic | list | tuple | int | float):
        return value
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
