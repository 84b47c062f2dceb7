"""_contrib_BatchNormWithReLU: out = max(0, gamma (data - mean) / sqrt(variance + eps) + beta), as BatchNorm and relu.

Inputs, outputs, shapes, parameters and moving statistics are BatchNorm's. The hidden output workspace, of data's shape,
is 1 where out is above 0: there gout counts, and BatchNorm's gradient follows. Where out is 0 its slope is 0.
"""

from __future__ import annotations

from opbox_protocol.mxnet import STATE_INITIALIZERS

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..registry import Slot, register, register_backward
from . import batch_norm
from .batch_norm import BatchNormParams

op = register(
    "_contrib_BatchNormWithReLU",
    BatchNormParams,
    inputs=batch_norm.op.inputs,
    outputs=(*batch_norm.op.outputs, Slot("workspace", visible=False, doc="1 where output is above 0")),
).inplace((0, 0))
op.set_attr("FSetInputVarAttrOnCompose", STATE_INITIALIZERS)
op.set_attr("TSkipsUnread", True)
backward = register_backward("_backward__contrib_BatchNormWithReLU", BatchNormParams, outputs=("data", "gamma", "beta"))
# Backward writes the moving statistics: its last two inputs.
backward.set_attr("FMutateInputs", lambda p: (6, 7))


@op.infer_shape
def _(p: BatchNormParams, ins: ShapeList, outs: ShapeList) -> None:
    ins.merge(0, outs.merge(3, ins[0]))
    batch_norm.infer_shapes(p, ins, outs)
    outs.merge(3, ins[0])


@op.infer_type
def _(p: BatchNormParams, ins: TypeList, outs: TypeList) -> None:
    batch_norm.infer_types(p, ins, outs)
    outs.merge(3, "uint8")


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    data, gamma, _, *moving = node.inputs
    statistics = [Entry(node, 1), Entry(node, 2)]
    inputs = [ograds[0], Entry(node, 3), data, gamma, *statistics, *moving]
    return backward_node("_backward__contrib_BatchNormWithReLU", node, inputs)


@op.compute(temps=batch_norm.forward_temps)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    batch_norm.forward(p, ctx, inputs, outputs, relu=True)


def _temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    """Temporaries of BatchNorm's gradient, and a block of gout."""
    gout, _, data, gamma, mean, *rest = call.inputs
    temps = batch_norm.backward_temps(p, CallSpec(call.device, (gout, data, gamma, mean, *rest), call.outputs))
    return temps if gout.dtype != mean.dtype else [*temps, temps[0]]


@backward.compute(temps=_temps)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, workspace, *rest = inputs
    batch_norm.gradients(p, ctx, [gout, *rest], outputs, workspace)
