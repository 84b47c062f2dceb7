"""Launches of kernels that draw a distribution's numbers, for the three forms that its operators have.

A kernel reserves blocks of the random stream and finds its own in them: number n's words depend on n alone, so that
the shape of the launch does not matter. A number that takes several attempts has a sub-stream: the block's counter
with the attempt above the number of the loop's body (`backend.random`), which no other draw has.

A parameter is one number, or an array with a number for each row of draws, in the type that the kernel computes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import registry
from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..random.table import TABLE, Distribution
from .kernel import KERNELS, TYPES, KernelTemplate, Moved, compiled
from .random import PHILOX, WORD, StreamPlace

__all__ = [
    "NUMBERS",
    "STREAM",
    "SUB_STREAMS",
    "DrawKernel",
    "declare",
    "drawn_by_kernels",
    "launch",
    "many_a_block",
    "one_a_block",
    "stream_arguments",
]

NUMBERS = 1 << 24
"""Numbers of the report's examples."""
_THREADS = 256
STREAM = ", ".join((f"const {WORD} *where", *(f"{WORD} {name}" for name in ("first", "k0", "k1", "c1", "c2", "c3"))))
"""The parameters that end each of these kernels: `StreamPlace`."""
SUB_STREAMS = (
    PHILOX
    + f"""struct SubStream {{
  {WORD} block, k0, k1, c1, c2, c3;
  __device__ Philox next() {{
    const Philox drawn = philox(block, c1, c2, c3, k0, k1);
    c1 += 1ull << 32;
    return drawn;
  }}
}};
__device__ SubStream sub_stream({WORD} number, {STREAM}) {{
  if (where) {{ k0 = where[0]; k1 += where[1]; c3 = where[2]; }}
  return {{first + number + 1, k0, k1, c1, c2, c3}};
}}
// From 0 up to but not 1, and from above 0 up to 1: 53 bits.
__device__ double from_zero({WORD} word) {{ return (word >> 11) * (1.0 / 9007199254740992.0); }}
__device__ double above_zero({WORD} word) {{ return ((word >> 11) + 1) * (1.0 / 9007199254740992.0); }}
"""
)
"""SubStream::next: the block of an attempt and, from then on, of the next one."""
_PARAMETERS = (
    "T *out, long long size, long long draws, const A *rows_a, const A *rows_b, double number_a, double number_b, "
    + STREAM
)
_BEGIN = """  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (thread * per >= size) return;
  SubStream stream = sub_stream(thread, where, first, k0, k1, c1, c2, c3);
"""
_NUMBER = """  for (int k = 0; k < per; ++k) {
    const long long number = thread * per + k;
    if (number >= size) break;
    const double a = rows_a ? double(rows_a[number / draws]) : number_a;
    const double b = rows_b ? double(rows_b[number / draws]) : number_b;
"""


@dataclass(frozen=True)
class DrawKernel:
    """A kernel that draws a distribution's numbers.

    Attributes:
        template: the kernel.
        per: how many numbers of an element type a thread makes of its block.
    """

    template: KernelTemplate
    per: Callable[[Any], int]


def one_a_block(name: str, expression: str, declares: str) -> DrawKernel:
    """A kernel whose thread makes one number: `expression` of its SubStream `stream` and of parameters a and b."""
    body = f"  const int per = 1;\n{_BEGIN}{_NUMBER}    out[number] = T({expression});\n  }}\n"
    return DrawKernel(_template(name, body, declares), lambda dtype: 1)


def many_a_block(name: str, expression: str) -> DrawKernel:
    """A kernel whose thread makes four numbers of its block, or eight where it computes in single precision.

    Args:
        expression: a number, of `point` from above 0 up to 1 and of parameters a and b.
    """
    body = (
        f"  const int per = sizeof(A) == 8 ? 4 : 8;\n{_BEGIN}  const Philox drawn = stream.next();\n{_NUMBER}"
        "    const unsigned half = unsigned(drawn.words[k / 2] >> (k % 2 * 32));\n"
        "    const A point = per == 4 ? A(above_zero(drawn.words[k % 4])) : A((half + 1.0) * (1.0 / 4294967296.0));\n"
        f"    out[number] = T({expression});\n  }}\n"
    )
    return DrawKernel(_template(name, body, ""), lambda dtype: 32 // accumulation_type(dtype).itemsize)


def _template(name: str, body: str, declares: str) -> KernelTemplate:
    moved = Moved(4 * NUMBERS, 4 * NUMBERS)
    template = KernelTemplate(
        f"opbox_{name}", _PARAMETERS, body, (f"{NUMBERS:,} numbers", lambda: moved), SUB_STREAMS + declares
    )
    KERNELS.append(template)
    return template


def stream_arguments(place: StreamPlace) -> tuple[Any, ...]:
    """Return the arguments that a kernel with STREAM among its parameters takes for a place in the stream."""
    where = np.uintp(0) if place.where is None else place.where
    return where, *map(np.uint64, (place.first, *place.key, *place.counter))


def launch(ctx: OpContext, kernel: DrawKernel, out: Array, draws: int, parameters: Sequence[Any]) -> None:
    """Fill `out`, contiguous: number n is of row n // draws.

    Args:
        parameters: one or two: numbers, or arrays of rows in the type that `out` is computed in.
    """
    if not out.size:
        return
    blocks = -(-out.size // kernel.per(out.dtype))
    both = [*parameters, 0.0][:2]
    rows = [np.uintp(0) if isinstance(number, float | int) else number for number in both]
    numbers = [np.float64(number) if isinstance(number, float | int) else np.float64(0) for number in both]
    place = stream_arguments(ctx.random.reserve(blocks))
    arguments = (out, np.int64(out.size), np.int64(max(draws, 1)), *rows, *numbers, *place)
    function = compiled(ctx.xp, kernel.template, out.dtype.name)
    function((-(-blocks // _THREADS),), (_THREADS,), arguments)


def declare(name: str, kernel: DrawKernel, check: Callable[[Distribution, Any], None] | None = None) -> None:
    """Draw a distribution of `random.table` by a kernel on a GPU, in all three forms.

    Args:
        name: the distribution's.
        kernel: draws its numbers.
        check: takes the distribution and an operator's parameters, and raises for numbers that cannot be drawn. Arrays
            are not looked at, since the device's queue would have to end first: the kernel gives NaN for elements that
            are out of range.
    """
    [row] = [row for row in TABLE if row.name == name]
    for form in (f"_random_{name}", f"_random_{name}_like"):

        @registry.get(form).compute("gpu", level="generated", accepts=drawn_by_kernels)
        def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
            if check is not None:
                check(row, p)
            launch(ctx, kernel, outputs[0], 1, [float(getattr(p, parameter)) for parameter in row.params])

    @registry.get(f"_sample_{name}").compute("gpu", level="generated", accepts=drawn_by_kernels, temps=_rows)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        for array, rows in zip(inputs, ctx.temp, strict=True):
            ctx.xp.copyto(rows, array, casting="unsafe")
        launch(ctx, kernel, outputs[0], size_of(p.shape), ctx.temp)


def drawn_by_kernels(p: Any, call: CallSpec) -> bool:
    """Return whether a kernel can draw the output: one of the types that kernels draw in, in plain layout."""
    return call.plain and call.outputs[0].dtype.name in TYPES


def _rows(p: Any, call: CallSpec) -> list[Temp]:
    """The parameters in the type that is computed in."""
    return [Temp(array.shape, accumulation_type(call.outputs[0].dtype)) for array in call.inputs]
