"""What all update operators share: their declaration, the gradient as it enters the step, and how a step is run.

An operator reads weight and grad, keeps its state in auxiliary inputs that it rewrites, and writes the new weight, as a
rule over the old one. It is written down twice, in NumPy calls and in a line of CUDA, because both pay: on the CPU a
step runs over blocks that stay in the cache together with its scratch arrays, on the GPU it is one kernel that reads
and writes each array once.

    d = clip(rescale_grad * grad, clip_gradient) + wd * weight         clip before decay (SGD and its kin)
    d = clip(rescale_grad * grad + wd * weight, clip_gradient)         clip after decay (Adam, RMSProp, FTML)

A negative clip_gradient clips nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..infer import TypeList, all_same_shape, size_of
from ..params import Field, Float, Params
from ..registry import Op, Slot, register

__all__ = ["BLOCK", "Step", "UpdateParams", "blocks", "clip_weights", "declare", "scale_and_clip"]

BLOCK = 1 << 15
"""Elements of a block: in float32 128 KiB for each of up to seven arrays, which a core's second-level cache holds."""

Order: TypeAlias = Literal["clip first", "decay first", "no decay", "raw"]
Step: TypeAlias = "Callable[[Any, Array, Array, Array, Sequence[Array], Array, Array], None]"
"""`(p, weight, d, scratch, states, new weight, grad)`, all of one block; d may be overwritten, weight may not."""


class UpdateParams(Params):
    lr: Float = Field(description="Learning rate.")
    wd: Float = Field(0.0, description="Weight decay: adds wd * weight to the gradient.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradient.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradient's elements; negative: none.")


def scale_and_clip(p: Any, order: Order, weight: Array, grad: Array, d: Array, scratch: Array) -> None:
    """Write the gradient as the step takes it into `d`."""
    if order == "raw":
        return
    np.multiply(grad, p.rescale_grad, out=d, dtype=d.dtype)
    clip = getattr(p, "clip_gradient", None)
    limit = p.clip_grad if clip is None else clip
    if limit >= 0 and order != "decay first":
        np.clip(d, -limit, limit, out=d)
    if p.wd and order != "no decay":
        np.multiply(weight, p.wd, out=scratch)
        d += scratch
    if limit >= 0 and order == "decay first":
        np.clip(d, -limit, limit, out=d)


def clip_weights(p: Any, weight: Array) -> None:
    """Limit the new weight, for the operators that have `clip_weights`."""
    if p.clip_weights >= 0:
        np.clip(weight, -p.clip_weights, p.clip_weights, out=weight)


def blocks(arrays: Sequence[Array], scratch: Sequence[Array]) -> Iterator[tuple[list[Array], list[Array]]]:
    """The arrays, all of one shape, cut into views of at most BLOCK elements, with as much of the scratch arrays.

    Arrays that are not contiguous are taken whole, with scratch arrays made for them: a rare case.
    """
    first = arrays[0]
    if all(array.flags.c_contiguous for array in arrays):
        flat = [array.reshape(-1) for array in arrays]
        for begin in range(0, first.size, BLOCK):
            views = [array[begin : begin + BLOCK] for array in flat]
            yield views, [array[: len(views[0])] for array in scratch]
    else:
        yield list(arrays), [np.empty(first.shape, array.dtype) for array in scratch]


def declare(
    name: str,
    params: type[Params],
    states: Sequence[str],
    step: Step,
    cuda: str,
    order: Order,
    doc: str,
    *,
    scalars: Callable[[Any], Mapping[str, float]] = lambda p: {},
    mixed: bool = False,
) -> Op:
    """Register an update operator.

    Args:
        name: its name.
        params: its parameters, `UpdateParams` with more.
        states: names of its state arrays.
        step: one block on the CPU.
        cuda: the same for one element: sets `y`, the new weight, from `x`, the old one, `q`, the gradient as `order`
            says, `grad`, the raw one, the states by their names, and the parameters and `scalars`.
        order: how d is made.
        doc: one sentence.
        scalars: numbers computed from the parameters, for the CUDA line.
        mixed: weight and grad have a narrow type, and a float32 copy of the weight, `weight32`, is the last state.
    """
    names = [*states, "weight32"] if mixed else list(states)
    op = register(name, params, inputs=("weight", "grad", *(Slot(each, aux=True) for each in names)), doc=doc)
    op.inplace((0, 0))
    op.infer_shape(all_same_shape)
    if mixed:
        op.infer_type(_mixed_type)

    @op.resources
    def _(p: Any, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> list[Temp]:
        dtype = "float32" if mixed else in_types[0]
        return [Temp((min(size_of(in_shapes[0]), BLOCK),), dtype)] * 3

    @op.compute("cpu")
    def _(p: Any, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        if not req[0]:
            return
        for views, (d, scratch, sum_) in blocks([*inputs, outputs[0]], ctx.temp):
            weight, grad, *held, out = views
            master = held.pop() if mixed else weight
            # A sum needs the new weight on its own; a master copy is written first and then rounded into the output.
            new = master if mixed else sum_ if req[0] == OpReq.ADD else out
            scale_and_clip(p, order, master, grad, d, scratch)
            step(p, master, d, scratch, held, new, grad)
            if new is not out:
                assign(out, req[0], new)

    @op.compute("gpu")
    def _(p: Any, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        if not req[0]:
            return
        numbers = {
            key: float(value)
            for key, value in {**dict(p), **scalars(p)}.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        wide = "double" if inputs[0].dtype.char == "d" else "float"
        code = _cuda(cuda, order, tuple(names), tuple(numbers), wide, mixed, req[0] == OpReq.ADD)
        types = tuple(str(array.dtype) for array in (*inputs, outputs[0]))
        kernel = _kernel(ctx.xp, name, code, tuple(names), tuple(numbers), types)
        kernel(inputs[0], inputs[1], *numbers.values(), outputs[0], *inputs[2:])

    return op


def _mixed_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    dtype = outs.merge(0, ins.merge(1, ins[0] or outs[0]))
    ins.merge(0, dtype or ins[1])
    outs.merge(0, ins.merge(1, ins[0]))
    for i in range(2, len(ins)):
        ins.merge(i, "float32")


def _cuda(
    line: str, order: Order, states: tuple[str, ...], numbers: tuple[str, ...], wide: str, mixed: bool, add: bool
) -> str:
    """The kernel's body: read everything into registers of the wide type, compute, write back."""
    clip = "clip_grad" if "clip_grad" in numbers else "clip_gradient"
    clipping = f"if ({clip} >= 0) q = q > {clip} ? {clip} : q < -{clip} ? -{clip} : q;"
    decay = "q += wd * x;"
    steps = {
        "clip first": f"q *= rescale_grad; {clipping} {decay}",
        "decay first": f"q *= rescale_grad; {decay} {clipping}",
        "no decay": f"q *= rescale_grad; {clipping}",
        "raw": "",
    }[order]
    source = "weight32_" if mixed else "weight_in"
    reads = " ".join(f"{wide} {name} = {name}_;" for name in states if name != "weight32")
    writes = " ".join(f"{name}_ = {name};" for name in states if name != "weight32")
    last = "weight32_ = y;" if mixed else ""
    sum_ = f"({wide})out_ + y" if add else "y"
    return f"{wide} x = {source}, grad = grad_in, q = grad, y; {reads} {steps} {line} {writes} {last} out_ = {sum_};"


@cache
def _kernel(
    xp: Any, name: str, code: str, states: tuple[str, ...], numbers: tuple[str, ...], types: tuple[str, ...]
) -> Any:
    weight, grad, *held, out = types
    wide = "float64" if weight == "float64" else "float32"
    ins = [f"{weight} weight_in", f"{grad} grad_in", *(f"{wide} {number}" for number in numbers)]
    outs = [f"{out} out_", *(f"{dtype} {state}_" for dtype, state in zip(held, states, strict=True))]
    return xp.ElementwiseKernel(", ".join(ins), ", ".join(outs), code, f"opbox_{name}")
