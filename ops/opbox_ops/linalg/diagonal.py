"""_linalg_extractdiag, _linalg_makediag, _linalg_extracttrian, _linalg_maketrian, diag: diagonals and triangles.

    extractdiag   out[…, i] = A[…, i, i + offset]                  A (…, n, n), out (…, n - |offset|)
    makediag      the matrices that have A on that diagonal         A (…, n), out (…, n + |offset|, n + |offset|)
    extracttrian  a triangle's numbers in a row: of the lower one line by line, of the upper one column by column
    maketrian     the matrices that have A for that triangle        A (…, s * (s + 1) / 2), out (…, s + |offset|, …)
    diag          of a vector the square matrix with it on diagonal k; of more axes the diagonal k of the matrices on
                  axis1 and axis2, which becomes the last axis

A triangle begins at the diagonal `offset`: below the main one (offset < 0) the lower triangle, above it the upper one;
at 0 `lower` tells. Positions beside it are 0. The gradient lays gout where the numbers came from, or takes it from
where they went.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, TypeAlias

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, ArraySpec, OpContext, Outputs, Temp
from ..gradient import grad_use_none
from ..index.counting import count_up
from ..index.positions import take_rows
from ..infer import Shape, ShapeList, canonical_axis, show_shape, size_of
from ..params import Bool, Field, Int, Params
from ..registry import register, register_backward
from .matrix import real_types, square

Take: TypeAlias = "Callable[[Any, Any, Array, Array, Arrays], None]"
"""`(xp, p, matrices, packed, scratch)`: write what is taken from the matrices."""
Lay: TypeAlias = "Callable[[Any, Any, Array, Array, Arrays], None]"
"""`(xp, p, packed, matrices, scratch)`: write the matrices, which are 0 beside what is packed."""
TempsOf: TypeAlias = "Callable[[ArraySpec], list[Temp]]"
"""From what is packed to the arrays that `Take` and `Lay` work in."""


class DiagonalParams(Params):
    offset: Int = Field(0, description="Which diagonal: 0 the main one, negative below it, positive above it.")


class TriangleParams(DiagonalParams):
    lower: Bool = Field(True, description="With offset 0: the lower triangle; False: the upper one.")


class DiagParams(Params):
    k: Int = Field(0, description="Which diagonal: 0 the main one, negative below it, positive above it.")
    axis1: Int = Field(0, description="The axis that counts the rows.")
    axis2: Int = Field(1, description="The axis that counts the columns.")


def _take_diagonal(xp: Any, p: DiagonalParams, matrices: Array, packed: Array, scratch: Arrays) -> None:
    if packed.size:  # or the number may be larger than the library takes
        packed[...] = matrices.diagonal(p.offset, -2, -1)


def _lay_diagonal(xp: Any, p: DiagonalParams, packed: Array, matrices: Array, scratch: Arrays) -> None:
    _lay(xp, p.offset, packed, matrices)


def _triangle(xp: Any, p: TriangleParams, side: int, scratch: Arrays) -> Array:
    """Return the indices of a packed triangle's numbers in a matrix (side, side): line i of the lower one has i + 1.

    Number k is in the line (sqrt(8 k + 1) - 1) / 2, rounded down: exact up to 2^50 numbers.
    """
    cells, line, place, root = scratch
    count_up(xp, place)
    root[...] = place
    root *= 8
    root += 1
    xp.sqrt(root, out=root)
    root -= 1
    root /= 2
    line[...] = root
    xp.add(line, 1, out=cells)
    cells *= line
    cells //= 2
    place -= cells
    rows, columns = (line, place) if p.offset < 0 or (p.offset == 0 and p.lower) else (place, line)
    xp.multiply(rows, side, out=cells)
    cells += columns
    cells += p.offset if p.offset > 0 else -p.offset * side
    return cells


def _triangle_temps(packed: ArraySpec) -> list[Temp]:
    """Temporaries of `_triangle`."""
    count = packed.shape[-1:]
    return [Temp(count, "int64"), Temp(count, "int64"), Temp(count, "int64"), Temp(count, "float64")]


def _flat(matrices: Array) -> Array:
    """Matrices (…, n, n) as rows (m, n * n)."""
    batch = size_of(matrices.shape[:-2])
    return matrices.reshape(batch, matrices.shape[-1] ** 2)


def _take_triangle(xp: Any, p: TriangleParams, matrices: Array, packed: Array, scratch: Arrays) -> None:
    flat, cells = _flat(matrices), _triangle(xp, p, matrices.shape[-1], scratch)
    take_rows(xp, flat, cells, packed.reshape(len(flat), len(cells)), axis=1)


def _lay_triangle(xp: Any, p: TriangleParams, packed: Array, matrices: Array, scratch: Arrays) -> None:
    flat, cells = _flat(matrices), _triangle(xp, p, matrices.shape[-1], scratch)
    flat.fill(0)
    flat[:, cells] = packed.reshape(len(flat), len(cells))


def _lines(count: int) -> int:
    """Return the number of lines of a packed triangle of `count` numbers."""
    return (isqrt(8 * count + 1) - 1) // 2


def _diagonal_size(side: int) -> int:
    return side


def _triangle_size(side: int) -> int:
    return side * (side + 1) // 2


def _triangle_side(count: int) -> int:
    lines = _lines(count)
    if _triangle_size(lines) != count:
        raise ShapeError(f"expected 1, 3, 6, 10, … numbers, as a triangle has, got {count}", side="input", index=0)
    return lines


def _taken(p: Any, matrix: Shape, size: Callable[[int], int], *, empty: bool = False) -> Shape:
    """The shape of what is taken from matrices of this shape; with `empty` it may be nothing."""
    if matrix is None:
        return None
    side = matrix[-1]
    if 0 <= side <= abs(p.offset) and not (side == abs(p.offset) and (empty or side == 0)):
        raise ShapeError(f"offset: expected between {1 - side} and {side - 1} for {show_shape(matrix)}, got {p.offset}")
    return (*matrix[:-2], -1 if side < 0 else size(side - abs(p.offset)))


def _matrices_shape(p: Any, packed: Shape, side: Callable[[int], int]) -> Shape:
    """The shape of the matrices that what is packed like this is laid in."""
    if packed is None:
        return None
    if not packed:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    n = -1 if packed[-1] < 0 else side(packed[-1]) + abs(p.offset)
    return (*packed[:-1], n, n)


def _declare(
    what: str, params: type[Params], take: Take, lay: Lay, size: Any, side: Any, docs: tuple[str, str], temps: TempsOf
) -> None:
    extract = register(f"_linalg_extract{what}", params, inputs=("A",), aliases=(f"linalg_extract{what}",), doc=docs[0])
    make = register(f"_linalg_make{what}", params, inputs=("A",), aliases=(f"linalg_make{what}",), doc=docs[1])
    extract_backward = register_backward(f"_backward_linalg_extract{what}", params, outputs=("A",))
    make_backward = register_backward(f"_backward_linalg_make{what}", params, outputs=("A",))
    extract.set_attr("FGradient", grad_use_none(extract_backward.name))
    make.set_attr("FGradient", grad_use_none(make_backward.name))
    extract.infer_type(real_types)
    make.infer_type(real_types)

    @extract.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        outs.merge(0, _taken(p, square(ins, 0), size))
        ins.merge(0, _matrices_shape(p, outs[0], side))

    @make.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        outs.merge(0, _matrices_shape(p, ins[0], side))
        ins.merge(0, _taken(p, square(outs, 0), size, empty=True))

    @extract.compute(temps=lambda p, call: temps(call.outputs[0]))
    @make_backward.compute(temps=lambda p, call: temps(call.outputs[0]))
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        take(ctx.xp, p, inputs[0], outputs[0], ctx.temp)

    @make.compute(temps=lambda p, call: temps(call.inputs[0]))
    @extract_backward.compute(temps=lambda p, call: temps(call.inputs[0]))
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        lay(ctx.xp, p, inputs[0], outputs[0], ctx.temp)


_declare(
    "diag",
    DiagonalParams,
    _take_diagonal,
    _lay_diagonal,
    _diagonal_size,
    _diagonal_size,
    ("A diagonal of square matrices.", "Square matrices with A on a diagonal."),
    temps=lambda packed: [],
)
_declare(
    "trian",
    TriangleParams,
    _take_triangle,
    _lay_triangle,
    _triangle_size,
    _triangle_side,
    ("A triangle of square matrices, packed.", "Square matrices with a packed triangle unpacked."),
    temps=_triangle_temps,
)

diag = register("diag", DiagParams, doc="A diagonal of an array, or the matrix with a vector on a diagonal.")
diag_backward = register_backward("_backward_diag", DiagParams)
diag.set_attr("FGradient", grad_use_none("_backward_diag"))


@diag.infer_shape
def _(p: DiagParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if not data:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    if len(data) == 1:
        side = -1 if data[0] < 0 else data[0] + abs(p.k)
        out = outs.merge(0, (side, side))
        if out is not None and max(out) >= 0:
            ins.merge(0, (max(max(out) - abs(p.k), 0),))
        return
    first, second = canonical_axis(p.axis1, len(data), "axis1"), canonical_axis(p.axis2, len(data), "axis2")
    if first == second:
        raise ShapeError(f"axis1, axis2: expected two axes, got {p.axis1} and {p.axis2}, which are one")
    rows, columns = data[first], data[second]
    length = -1 if min(rows, columns) < 0 else min(rows + min(p.k, 0), columns - max(p.k, 0))
    if min(rows, columns) > 0 and length <= 0:
        raise ShapeError(f"k: expected between {1 - rows} and {columns - 1} for ({rows}, {columns}), got {p.k}")
    length = max(length, -1 if min(rows, columns) < 0 else 0)
    batch = [axis for axis in range(len(data)) if axis not in (first, second)]
    out = outs.merge(0, (*(data[axis] for axis in batch), length))
    assert out is not None
    dims = list(data)
    for axis, size in zip(batch, out, strict=False):
        dims[axis] = size
    ins.merge(0, tuple(dims))


def _lay(xp: Any, k: int, data: Array, matrices: Array) -> None:
    """Write matrices whose diagonal `k` is data, and 0 beside it."""
    rows, columns = matrices.shape[-2:]
    length = max(min(rows + min(k, 0), columns - max(k, 0)), 0)
    line = slice(0, length)
    matrices[...] = 0
    # The diagonal of a view that begins at its first number is its main one.
    part = matrices[..., max(-k, 0) :, max(k, 0) :]
    part = part[..., line, line]
    steps = (*part.strides[:-2], part.strides[-2] + part.strides[-1])
    xp.lib.stride_tricks.as_strided(part, (*part.shape[:-2], length), steps)[...] = data


@diag.compute()
def _(p: DiagParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if data.ndim == 1:
        _lay(ctx.xp, p.k, data, out)
    elif out.size:  # or the number may be larger than the library takes
        out[...] = data.diagonal(p.k, p.axis1, p.axis2)


@diag_backward.compute()
def _(p: DiagParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g,), (out,) = inputs, outputs
    if out.ndim == 1:
        if out.size:
            out[...] = g.diagonal(p.k)
    else:
        axes = (p.axis1 % out.ndim, p.axis2 % out.ndim)
        _lay(ctx.xp, p.k, g, ctx.xp.moveaxis(out, axes, (-2, -1)))
