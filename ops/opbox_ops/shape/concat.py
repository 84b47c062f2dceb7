"""Concat and stack: several arrays of one array.

Concat: inputs (…, d_i, …) joined along axis `dim` -> (…, sum of d_i, …)
stack: inputs of one shape along a new axis -> (…, num_args, …)
each input's gradient is its part of gout
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_use_none
from ..infer import ShapeList, canonical_axis
from ..params import Count, Field, Int, Params
from ..registry import Variadic, register, register_backward

__all__ = [
    "ConcatParams",
    "concat",
    "concat_backward",
    "join",
    "numpy_concat",
    "numpy_concat_backward",
    "stack",
    "stack_backward",
    "stacked_parts",
    "take_apart",
]


class ConcatParams(Params):
    num_args: Count = Field(description="How many arrays.")
    dim: Int = Field(1, description="The axis to join along.")


class NumpyConcatParams(Params):
    num_args: Count = Field(description="How many arrays.")
    axis: Int = Field(0, description="The axis to join along.")

    @property
    def dim(self) -> int:
        """The axis, as Concat calls it."""
        return self.axis


class StackParams(Params):
    num_args: Count = Field(description="How many arrays.")
    axis: Int = Field(0, description="Where the new axis goes.")


concat = register("Concat", ConcatParams, inputs=Variadic(), aliases=("concat",), doc="Arrays joined along an axis.")
stack = register(
    "stack", StackParams, inputs=Variadic(), aliases=("_npi_stack",), doc="Arrays of one shape along a new axis."
)
numpy_concat = register(
    "_npi_concatenate", NumpyConcatParams, inputs=Variadic(), doc="Arrays joined along an axis, as mx.np has it."
)
concat_backward = register_backward("_backward_Concat", ConcatParams)
numpy_concat_backward = register_backward("_backward_npi_concatenate", NumpyConcatParams)
numpy_concat.set_attr("FGradient", grad_use_none("_backward_npi_concatenate"))
stack_backward = register_backward("_backward_stack", StackParams)
concat.set_attr("FGradient", grad_use_none("_backward_Concat"))
stack.set_attr("FGradient", grad_use_none("_backward_stack"))


@concat.infer_shape
@numpy_concat.infer_shape
def _(p: ConcatParams | NumpyConcatParams, ins: ShapeList, outs: ShapeList) -> None:
    present = next((shape for shape in (*ins, *outs) if shape is not None), None)
    if present is None:
        return
    axis = canonical_axis(p.dim, len(present), "dim")

    def but_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:axis], -1, *shape[axis + 1 :])

    # What the inputs and the output have in common is everything but the size along the axis.
    common: tuple[int, ...] = (-1,) * len(present)
    for slots in (ins, outs, ins, outs):
        for i in range(len(slots)):
            shape = slots.merge(i, common)
            assert shape is not None
            common = but_axis(shape)
    sizes = [shape[axis] for shape in ins if shape is not None]
    unknown = [i for i, size in enumerate(sizes) if size < 0]
    if not unknown:
        outs.merge(0, (*common[:axis], sum(sizes), *common[axis + 1 :]))
    total = outs[0][axis] if outs[0] is not None else -1
    if len(unknown) == 1 and total >= 0:
        rest = total - sum(size for size in sizes if size >= 0)
        if rest < 0:
            raise ShapeError(f"dim {axis}: expected inputs of at most {total} in all, got {total - rest}")
        ins.merge(unknown[0], (*common[:axis], rest, *common[axis + 1 :]))


@concat.compute()
@numpy_concat.compute()
def join(p: ConcatParams | NumpyConcatParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.concatenate(inputs, axis=p.dim % outputs[0].ndim, out=outputs[0])


@concat_backward.compute()
@numpy_concat_backward.compute()
def take_apart(p: ConcatParams | NumpyConcatParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout,) = inputs
    axis = p.dim % gout.ndim
    begin = 0
    for out, spec in zip(outputs, ctx.call.outputs, strict=True):
        end = begin + spec.shape[axis]
        if out is not None:
            ctx.xp.copyto(out, gout[(*(slice(None),) * axis, slice(begin, end))])
        begin = end


@stack.infer_shape
def _(p: StackParams, ins: ShapeList, outs: ShapeList) -> None:
    out = outs[0]
    common = None
    if out is not None:
        axis = canonical_axis(p.axis, len(out))
        outs.merge(0, (*(-1,) * axis, p.num_args, *(-1,) * (len(out) - axis - 1)))
        common = (*out[:axis], *out[axis + 1 :])
    for _ in range(2):
        for i in range(len(ins)):
            common = ins.merge(i, common)
    if common is not None:
        axis = canonical_axis(p.axis, len(common) + 1)
        outs.merge(0, (*common[:axis], p.num_args, *common[axis:]))


def stacked_parts(p: StackParams, array: Array) -> list[Array]:
    """Views of what each input is in the output, or in its gradient."""
    axis = p.axis % array.ndim
    return [array[(*(slice(None),) * axis, i, ...)] for i in range(p.num_args)]


@stack.compute()
def _(p: StackParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for part, array in zip(stacked_parts(p, outputs[0]), inputs, strict=True):
        ctx.xp.copyto(part, array)


@stack_backward.compute()
def _(p: StackParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for part, out in zip(stacked_parts(p, inputs[0]), outputs, strict=True):
        if out is not None:
            ctx.xp.copyto(out, part)
