"""The package onnx: what is said without it, the opsets in question, and its element types."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

__all__ = ["NEWEST", "OLDEST", "OPSET", "require", "tensor_type"]

OPSET = 17
"""The opset that is written: the first with LayerNormalization (2022)."""
OLDEST, NEWEST = 7, 22
"""The opsets that are read: before 7 broadcasting needs an axis."""


def require() -> None:
    """Import onnx.

    Raises:
        ImportError: it is not installed.
    """
    try:
        importlib.import_module("onnx")
    except ImportError:
        raise ImportError("mx.onnx: needs the package onnx: pip install 'opbox[onnx]'") from None


def tensor_type(dtype: Any) -> int:
    """ONNX's number of an element type."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
