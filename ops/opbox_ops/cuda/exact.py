"""How CUDA texts of ours are compiled, so that fused formulas have the bits of their steps.

A compiler may make one instruction of a product and the sum behind it (FFMA), which rounds once in place of twice:
a * b - c * c with a = b = c = 1 + 2^-12 is then -2^-24, not 0, and its root NaN. Kernels that wait for memory are
compiled with EXACT and pay nothing for it. Kernels in which arithmetic takes the time (KernelTemplate.contracts) are
not: they do twice the work in the same time.
"""

from __future__ import annotations

__all__ = ["EXACT"]

EXACT = ("--fmad=false",)
"""Compiler options where each product and each sum is rounded by itself, as NumPy does."""
