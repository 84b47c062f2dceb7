"""Arithmetic as NumPy's: a product is rounded before it is added to, and half precision is rounded after each step.

A compiler may fuse a product and a sum into one instruction, whose last bit then differs; whether one box overlaps
another by just the threshold depends on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernel import scalar

__all__ = ["PRODUCT", "ROUNDED", "rounded_scalar"]

PRODUCT = """#ifdef __CUDACC_RTC__
__device__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ double product(double a, double b) { return __dmul_rn(a, b); }
#else
__device__ float product(float a, float b) { return a * b; }
__device__ double product(double a, double b) { return a * b; }
#endif
"""
"""A product that is not fused with a sum."""
ROUNDED = f"""{PRODUCT}__device__ A rounded(A x) {{ return A(T(x)); }}
__device__ A times(A a, A b) {{ return rounded(product(a, b)); }}
"""
"""`rounded` to elements' type, and `times`, a product that is."""


def rounded_scalar(value: float, dtype: Any) -> Any:
    """A number as NumPy takes it beside elements of `dtype`: rounded to that type; in the type it is computed in."""
    with np.errstate(over="ignore"):
        return scalar(np.dtype(dtype).type(value), dtype)
