"""NumPy's `exp` of float32, and without AVX-512 its `tanh`, in a third to three fifths of its time, with AVX2 or more.

The algorithms are those that NumPy 2 has there, operation for operation, so that results are its own to the last bit
(tried for all 2^32 numbers):

    exp x  = 2^k P(r) / Q(r)        k = x / log 2, rounded; r = x - k log 2; P and Q of degrees 5 and 2
    tanh x = sign(x) R(|x| - b)     R of degree 6, one of 32 by the exponent of x and two bits more

What takes NumPy its time is around them: masks for the end of a row in each step, and eight coefficients that are
picked one by one from four vectors. Here a row of coefficients is read for each number, and eight rows are transposed.
With AVX-512 its tanh takes no longer than one here would.

The coefficients of exp are NumPy's (`npy_simd_data.h`), those of tanh are of Intel's SVML, from which NumPy has them.
"""

from __future__ import annotations

from ..cpu.runtime.kernel_text import kernel_text
from ..cpu.runtime.processor import has_avx512, has_vectors

__all__ = ["NAMES", "TEXT", "is_here"]

NAMES = {"exp": "opbox_exp", "tanh": "opbox_tanh"}
"""The functions of `TEXT`, by NumPy's names. They are called as NumPy's loops are; `is_here` says which there are."""


def is_here(name: str) -> bool:
    """Return whether `TEXT` has a loop for this function of NumPy's on this processor."""
    return name in NAMES and has_vectors() and not (name == "tanh" and has_avx512())


TEXT = kernel_text("vector_functions.c")
