"""Products of matrices."""

from __future__ import annotations

from ..exporting import Dims, ExportCall, exports, refuse


def _transposed(call: ExportCall, i: int, wanted: bool) -> str:
    """An input, with its last two axes exchanged if wanted."""
    rank = len(call.shapes[i])
    if not wanted:
        return call.inputs[i]
    return call.emit("Transpose", call.inputs[i], perm=[*range(rank - 2), rank - 1, rank - 2])


@exports("dot")
def _(call: ExportCall) -> str:
    """The last axis of the left against the first of the right; transposing brings the other one there."""
    values, shapes = [], []
    for i, key in enumerate(("transpose_a", "transpose_b")):
        dims: Dims = call.shapes[i]
        value, rank = call.inputs[i], len(dims)
        if call.attr(key) and rank > 1:
            value = call.moved(value, 0, rank - 1, rank) if i == 0 else call.moved(value, rank - 1, 0, rank)
            dims = (*dims[1:], dims[0]) if i == 0 else (dims[-1], *dims[:-1])
        values.append(value)
        shapes.append(dims)
    if len(shapes[1]) <= 2:
        out = call.emit("MatMul", *values)
        return call.emit("Reshape", out, call.ints([1])) if len(shapes[0]) == len(shapes[1]) == 1 else out
    left = call.emit("Reshape", values[0], call.ints([-1, _known(call, shapes[0][-1])]))
    right = call.emit("Reshape", values[1], call.ints([_known(call, shapes[1][0]), -1]))
    return call.reshape(call.emit("MatMul", left, right), (None, None), call.out_shapes[0])


def _known(call: ExportCall, size: int | None) -> int:
    if size is None:
        raise refuse(call, "needs the size of the axis that is summed, which is dynamic")
    return size


@exports("batch_dot")
def _(call: ExportCall) -> str:
    return call.emit(
        "MatMul", _transposed(call, 0, call.attr("transpose_a")), _transposed(call, 1, call.attr("transpose_b"))
    )


@exports("_linalg_gemm2", "_linalg_gemm")
def _(call: ExportCall) -> str:
    if int(call.attr("axis")) not in (-2, call.rank - 2):
        raise refuse(call, f"axis: expected -2, got {call.attr('axis')}: transpose before and after it")
    out = call.emit(
        "MatMul", _transposed(call, 0, call.attr("transpose_a")), _transposed(call, 1, call.attr("transpose_b"))
    )
    if call.attr("alpha") != 1:
        out = call.emit("Mul", out, call.constant(call.attr("alpha")))
    if len(call.inputs) == 3:
        out = call.emit("Add", out, call.emit("Mul", call.inputs[2], call.constant(call.attr("beta"))))
    return out
