"""Formulas as one CUDA kernel: a thread computes all steps for an element, in registers, and writes the targets last.

Each step rounds as it does in a kernel of its own (`cuda.exact`). Nothing is allocated, arrays are read once, and a
target may be the memory of any array that it is an element of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ..bound_calls import Call
from ..compute import Array
from ..cuda.exact import EXACT
from .c_operators import C_OPERATORS
from .cuda_vectors import Formula
from .program import COPY, Program

__all__ = ["expressible", "formula_kernel"]

_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
}
"""The types that a kernel computes in."""
ARRAY_TYPES = {"float16": "float16", "bfloat16": "bfloat16", **_TYPES}
"""The types of arrays; CuPy's names for those of 16 bits, which become float where they are computed with."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_EXPRESSIONS = {
    **C_OPERATORS,
    "abs": "{a} < 0 ? -{a} : {a}",
    "logical_and": "{a} && {b}",
    "logical_or": "{a} || {b}",
    "logical_xor": "!{a} != !{b}",
    # NaN is the larger and the smaller of two.
    "maximum": "{a} != {a} || {a} > {b} ? {a} : {b}",
    "minimum": "{a} != {a} || {a} < {b} ? {a} : {b}",
}
_FLOATING = {
    "abs": "fabs({a})",
    "floor_divide": "floor({a} / {b})",
    # The remainder with the divisor's sign.
    "remainder": "opbox_modulo({a}, {b})",
    **{name: name + "({a})" for name in ("floor", "ceil", "trunc", "sqrt", "cbrt", "exp", "expm1", "log", "log2")},
    **{name: name + "({a})" for name in ("log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf")},
    **{f"arc{name}": f"a{name}" + "({a})" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "power": "pow({a}, {b})",
    "hypot": "hypot({a}, {b})",
    "arctan2": "atan2({a}, {b})",
    "copysign": "copysign({a}, {b})",
    "erfinv": "erfinv({a})",
    "round_float16": "__half2float(__float2half_rn({a}))",
    "round_bfloat16": "__bfloat162float(__float2bfloat16_rn({a}))",
    # SciPy has -inf at minus infinity, CUDA NaN and inf.
    "gamma": "isinf({a}) && {a} < 0 ? -1.0 / 0.0 : tgamma({a})",
    "gammaln": "isinf({a}) && {a} < 0 ? -1.0 / 0.0 : lgamma({a})",
}
_WHOLE = {
    "floor_divide": "{b} == 0 ? 0 : {a} / {b} - ({a} % {b} != 0 && ({a} < 0) != ({b} < 0))",
    "remainder": "{b} == 0 ? 0 : {a} % {b} + ({a} % {b} != 0 && ({a} < 0) != ({b} < 0) ? {b} : 0)",
    "negative": "opbox_negative({a})",
}
_PREAMBLE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T> __device__ T opbox_negative(T a) { return -a; }
#ifdef __CUDACC_RTC__
// In CUDA 12.9 and 13.0 the assembler makes one instruction of max(max(a, -b), c) for sm_90 and later, without the sign
// of b. It does not where b's bits are inverted, and 1 is added.
template <> __device__ int opbox_negative(int a) {
  unsigned inverted;
  asm("not.b32 %0, %1;" : "=r"(inverted) : "r"(a));
  return inverted + 1u;
}
template <> __device__ short opbox_negative(short a) { return opbox_negative(int(a)); }
#endif
template <class T> __device__ T opbox_modulo(T a, T b) {
  T y = fmod(a, b);
  return y != 0 && (y < 0) != (b < 0) ? y + b : y;
}
"""


def _expression(function: str, work: np.dtype[Any]) -> str | None:
    """The C expression of a function over a, b, c in the type `work`."""
    if work.kind == "f" and function in _FLOATING:
        return _FLOATING[function]
    if work.kind in "iub" and function in _WHOLE:
        return _WHOLE[function]
    if work.kind in "iub" and function == "divide":
        return None
    return _EXPRESSIONS.get(function)


def expressible(program: Program, work: np.dtype[Any]) -> bool:
    """Return whether `formula_kernel` can make a kernel of a program."""
    return (
        work.name in _TYPES
        and program.arrays + program.targets <= len(_LETTERS)
        and all(_expression(step.function, work) is not None for step in program.steps)
    )


def cuda_text(program: Program, work: np.dtype[Any]) -> str:
    """The kernel's body: `x<n>` are the arrays, then the constants; `y<n>` the targets."""
    read = program.arrays + len(program.constants)
    masks = read + program.registers
    targets = masks + program.masks
    kind = _TYPES[work.name]
    lines = [f"const auto v{n} = x{n};" for n in range(read)]
    lines += [f"{kind} v{n};" for n in range(read, masks)]
    lines += [f"bool v{n};" for n in range(masks, targets)]
    lines += [f"{kind} v{targets + n};" for n in range(program.targets)]
    values: dict[int, str] = {}
    for i, step in enumerate(program.steps):
        names = dict(zip("abc", (f"v{slot}" for slot in step.operands), strict=False))
        value, slot = str(_expression(step.function, work)).format(**names), step.result
        if step.function == COPY and slot >= targets and not _read_later(program, i):
            # What a target takes is converted once, to its own type.
            lines.append(f"const auto w{slot - targets} = {value};")
            values[slot - targets] = f"w{slot - targets}"
            continue
        lines.append(f"v{slot} = {value};")
        if slot >= targets:
            values[slot - targets] = f"v{slot}"
    lines += [f"y{n} = {name};" for n, name in sorted(values.items())]
    return "\n".join(lines)


def _read_later(program: Program, step: int) -> bool:
    """Return whether a later step reads the result of a step: a target's room may be lent to a value between."""
    slot = program.steps[step].result
    for later in program.steps[step + 1 :]:
        if slot in later.operands:
            return True
        if later.result == slot:
            return False
    return False


@dataclass(frozen=True)
class CudaFormula:
    """A formula's kernels: by vectors where its arrays lie in rows, else CuPy's."""

    xp: Any
    by_elements: Callable[..., Any]
    by_vectors: Formula

    def bind(self, arrays: Sequence[Array], constants: Sequence[Any], targets: Sequence[Array]) -> Call:
        """Return a call that writes the targets, all of one shape and not empty; the arrays are broadcast to it."""
        call = self.by_vectors.bind(self.xp, arrays, constants, targets)
        return partial(self.by_elements, *arrays, *constants, *targets) if call is None else call


@cache
def formula_kernel(program: Program, work: np.dtype[Any], xp: Any) -> CudaFormula | None:
    """The kernels of a program; None where a function of it has no expression."""
    if not expressible(program, work):
        return None
    # CuPy takes the type of a letter from an array, never from a number.
    kinds = [*_LETTERS[: program.arrays], *[work.name] * len(program.constants)]
    ins = ", ".join(f"{kind} x{n}" for n, kind in enumerate(kinds))
    outs = ", ".join(f"{_LETTERS[program.arrays + n]} y{n}" for n in range(program.targets))
    text = cuda_text(program, work)
    kernel = xp.ElementwiseKernel(ins, outs, text, "opbox_formula", preamble=_PREAMBLE, options=EXACT)
    vectors = Formula(text, _PREAMBLE, len(program.constants), _TYPES[work.name], tuple(ARRAY_TYPES.items()), EXACT)
    return CudaFormula(xp, kernel, vectors)
