"""amp_cast, amp_multicast, all_finite, multi_all_finite: what automatic mixed precision inserts into graphs.

    amp_cast          out = data in the type dtype, cut off if that is an integer type; float64 and integers stay
    amp_multicast     as many outputs as inputs: the floats among them in one type, the widest there is, or the
                      narrowest with cast_narrow; others as they are
    all_finite        out (1,) = 1.0 where every number is finite, else 0.0; float32
    multi_all_finite  the same of several arrays

Casts hand the gradient back in the input's type; the tests have no gradient.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import DTypeError
from opbox_protocol.mxnet import numpy_dtype

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node, grad_use_none
from ..infer import DType, ShapeList, TypeList, all_same_shape, all_same_type
from ..node import Entry, Node
from ..params import Bool, Count, Field, Params
from ..registry import Counted, Variadic, register, register_backward

AmpDType = Literal["bfloat16", "float16", "float32", "float64", "int32", "int64", "int8", "uint8"]
NARROW_TO_WIDE = ("float16", "bfloat16", "float32", "float64")


class AmpCastParams(Params):
    dtype: AmpDType = Field(description="The element type of the output.")


class AmpMulticastParams(Params):
    num_outputs: Count = Field(description="How many arrays.")
    cast_narrow: Bool = Field(False, description="Cast to the narrowest type instead of the widest.")


class AllFiniteParams(Params):
    init_output: Bool = Field(True, description="Accepted; the output never depends on what it held.")


class MultiAllFiniteParams(Params):
    num_arrays: Count = Field(1, description="How many arrays.")
    init_output: Bool = Field(True, description="Accepted; the output never depends on what it held.")


amp_cast = register("amp_cast", AmpCastParams, doc="data in another float type.").inplace((0, 0))
amp_cast_backward = register_backward("_backward_amp_cast", AmpCastParams).inplace((0, 0))
multicast = register(
    "amp_multicast",
    AmpMulticastParams,
    inputs=Variadic("num_outputs", "data_"),
    outputs=Counted("num_outputs"),
    doc="Several arrays in the widest, or narrowest, of their float types.",
)
multicast_backward = register_backward("_backward_amp_multicast", AmpMulticastParams)
all_finite = register("all_finite", AllFiniteParams, doc="Whether every number is finite.")
multi_all_finite = register(
    "multi_all_finite",
    MultiAllFiniteParams,
    inputs=Variadic("num_arrays", "data_"),
    doc="Whether every number of several arrays is finite.",
)
amp_cast.infer_shape(all_same_shape)
amp_cast.set_attr("FGradient", grad_use_none("_backward_amp_cast"))


def _is_float(dtype: DType) -> bool:
    return dtype is not None and dtype.name in NARROW_TO_WIDE


@amp_cast.infer_type
def _(p: AmpCastParams, ins: TypeList, outs: TypeList) -> None:
    wanted = numpy_dtype(p.dtype)
    if ins[0] is not None:
        outs.merge(0, wanted if _is_float(ins[0]) and ins[0] != np.float64 else ins[0])


@multicast.infer_shape
def _(p: AmpMulticastParams, ins: ShapeList, outs: ShapeList) -> None:
    for i in range(len(ins)):
        ins.merge(i, outs.merge(i, ins[i]))


@multicast.infer_type
def _(p: AmpMulticastParams, ins: TypeList, outs: TypeList) -> None:
    if any(dtype is None for dtype in ins):
        return
    floats = sorted({dtype.name for dtype in ins if dtype is not None and _is_float(dtype)}, key=NARROW_TO_WIDE.index)
    common = floats[0 if p.cast_narrow else -1] if floats else None
    if common == "bfloat16" and "float16" in floats:  # neither holds the other's numbers
        common = "float32"
    for i, dtype in enumerate(ins):
        outs.merge(i, common if _is_float(dtype) else dtype)


@multicast.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_amp_multicast", node, ograds)


@amp_cast.compute()
@amp_cast_backward.compute()
@multicast.compute()
@multicast_backward.compute()
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for data, out in zip(inputs, outputs, strict=True):
        if out is not None and out is not data:
            ctx.xp.copyto(out, data, casting="unsafe")


@all_finite.infer_shape
@multi_all_finite.infer_shape
def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, (1,))


@all_finite.infer_type
@multi_all_finite.infer_type
def _(p: Any, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "float32")
    all_same_type(p, ins, TypeList([], "output"))
    for i, dtype in enumerate(ins):
        if dtype is not None and not _is_float(dtype):
            raise DTypeError(f"expected a float type, got {dtype}", side=ins.side, index=i)


def _largest(p: Any, call: CallSpec) -> list[Temp]:
    return [Temp((max((math.prod(array.shape) for array in call.inputs), default=0),), np.bool_)]


@all_finite.compute(temps=_largest)
@multi_all_finite.compute(temps=_largest)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (out,) = outputs
    out.fill(1)
    for data in inputs:
        finite = ctx.temp[0][: data.size].reshape(data.shape)
        ctx.xp.isfinite(data, out=finite)
        out *= finite.all()
