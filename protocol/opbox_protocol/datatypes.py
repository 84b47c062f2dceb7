"""The wire's element types: their names in the Open Inference Protocol, and NumPy's types for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .errors import WireError

__all__ = ["DATATYPES", "datatype_of", "dtype_of"]

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""NumPy's little-endian type by the wire's name."""
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def datatype_of(dtype: Any) -> str:
    """Return the wire's name of a numpy dtype.

    Raises:
        WireError: arrays of this type cannot travel.

    Example:
        >>> datatype_of(np.float16)
        'FP16'
    """
    try:
        plain = np.dtype(dtype)
        return _NAMES[plain if plain.isnative else plain.newbyteorder()]
    except (KeyError, TypeError):
        raise WireError(f"element type {dtype} cannot travel: expected one of {', '.join(DATATYPES)}") from None


def dtype_of(datatype: Any) -> np.dtype[Any]:
    """Return the numpy dtype of a wire name.

    Raises:
        WireError: it is no such name.

    Example:
        >>> dtype_of("FP16")
        dtype('float16')
    """
    try:
        return DATATYPES[datatype]
    except (KeyError, TypeError):
        raise WireError(f"datatype {datatype!r} is unknown: expected one of {', '.join(DATATYPES)}") from None
