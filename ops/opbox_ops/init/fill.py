"""_zeros, _ones, _full, _eye, the _like forms and mx.np's: arrays of constants.

A dimension of 0 in `shape` is unknown, as everywhere in MXNet's parameters, and comes from what the array is used with;
so does all of it when shape is left out. In numpy mode 0 is a size, and -1 unknown.
"""

from __future__ import annotations

from typing import Any, Literal

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, TypeList, all_same_shape, summary
from ..node import Entry, Node
from ..params import AnyDType, Field, Float, Int, OptInt, Params, PartialShape, as_element
from ..registry import Op, register

__all__ = ["InitParams", "fixed_shape", "fixed_type"]


class InitParams(Params):
    shape: PartialShape = Field(None, description="Shape of the array; 0 is a size to infer.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: AnyDType = Field("float32", description="Element type of the array.")


class FullParams(InitParams):
    value: Float = Field(description="The value of every element.")


class EyeParams(Params):
    N: Int = Field(description="Rows.")
    M: Int = Field(0, description="Columns; as many as rows when it is 0.")
    k: Int = Field(0, description="Which diagonal: 0 the main one, above it when positive, below when negative.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: AnyDType = Field("float32", description="Element type of the array.")


class NumpyEyeParams(EyeParams):
    M: OptInt = Field(None, description="Columns; as many as rows when it is None.")  # type: ignore[assignment]


class FullLikeParams(Params):
    fill_value: Float = Field(description="The value of every element.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: AnyDType | Literal["None"] | None = Field(None, description="Element type; a's when it is None.")


@summary("given")
def fixed_shape(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """Shape rule: the parameter `shape`, as far as it tells."""
    outs.merge(0, p.shape)


@summary("given")
def fixed_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    """Type rule: the parameter `dtype`."""
    outs.merge(0, p.dtype)


def _constant(name: str, value: float, word: str) -> tuple[Op, Op]:
    op = register(name, InitParams, inputs=(), aliases=(f"_npi{name}",), doc=f"An array of {word}.")
    op.infer_shape(fixed_shape)
    op.infer_type(fixed_type)
    like = register(f"{name[1:]}_like", doc=f"An array of {word} in data's shape and element type.")
    like.infer_shape(all_same_shape)

    @like.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return [None]

    @op.compute()
    @like.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        outputs[0].fill(outputs[0].dtype.type(value))

    return op, like


zeros, zeros_like = _constant("_zeros", 0, "zeros")
ones, ones_like = _constant("_ones", 1, "ones")
zeros_like.inplace((0, 0))
ones_like.inplace((0, 0))

full_like = register("_npi_full_like", FullLikeParams, inputs=("a",), doc="An array of one value in a's shape.")
full_like.infer_shape(all_same_shape)
full_like.set_attr("FGradient", grad_zero)


@full_like.infer_type
def _(p: FullLikeParams, ins: TypeList, outs: TypeList) -> None:
    if p.dtype in (None, "None"):
        ins.merge(0, outs.merge(0, ins[0]))
    else:
        outs.merge(0, p.dtype)


@full_like.compute()
def _(p: FullLikeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(as_element(p.fill_value, outputs[0].dtype))


full = register("_full", FullParams, inputs=(), doc="An array of one value.")
full.infer_shape(fixed_shape)
full.infer_type(fixed_type)


@full.compute()
def _(p: FullParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(as_element(p.value, outputs[0].dtype))


eye = register("_eye", EyeParams, inputs=(), doc="A matrix of ones on a diagonal and zeros elsewhere.")
numpy_eye = register(
    "_npi_eye", NumpyEyeParams, inputs=(), doc="A matrix of ones on a diagonal and zeros elsewhere, of mx.np."
)
identity = register("_npi_identity", InitParams, inputs=(), doc="A square matrix of ones on the diagonal.")
for _op in (eye, numpy_eye, identity):
    _op.infer_type(fixed_type)


@numpy_eye.infer_shape
def _(p: NumpyEyeParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.N < 0 or (p.M or 0) < 0:
        raise ShapeError(f"N, M: expected numbers of at least 0, got {p.N} and {p.M}")
    outs.merge(0, (p.N, p.N if p.M is None else p.M))


@identity.infer_shape
def _(p: InitParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.shape is not None and (len(p.shape) != 2 or p.shape[0] != p.shape[1]):
        raise ShapeError(f"shape: expected that of a square matrix, got {p.shape}")
    outs.merge(0, p.shape)


@eye.infer_shape
def _(p: EyeParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.N < 0 or p.M < 0:
        raise ShapeError(f"N, M: expected numbers of at least 0, got {p.N} and {p.M}")
    outs.merge(0, (p.N, p.M or p.N))


@eye.compute()
@numpy_eye.compute()
@identity.compute()
def _(p: EyeParams | InitParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    matrix = outputs[0]
    matrix.fill(0)
    rows, columns = matrix.shape
    k = p.k if isinstance(p, EyeParams) else 0
    length = min(rows + min(k, 0), columns - max(k, 0))
    if length > 0:
        first = max(-k, 0)
        block = matrix[first : first + length, max(k, 0) :][:, :length]
        diagonal = ctx.xp.lib.stride_tricks.as_strided(block, (length,), (sum(block.strides),))
        diagonal.fill(matrix.dtype.type(1))
