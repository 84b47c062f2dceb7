"""SVMOutput: out = data, with the gradient of a multi-class hinge loss.

data and out (batch, classes), label (batch,). Each class is a machine of its own with y = 1 for the label and -1
otherwise; with m = margin - y data and c = regularization_coefficient,

    gdata = -c y where m > 0 (use_linear)          gdata = -2 c y m where m > 0

The gradient of out is not read, and label has none. Tang, "Deep Learning using Linear Support Vector Machines" (2013).
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.positions import whole
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params
from ..registry import register, register_backward
from ..shape.view import copy_input


class SVMOutputParams(Params):
    margin: Float = Field(1.0, description="Distance from the boundary at which the loss ends.")
    regularization_coefficient: Float = Field(1.0, description="Weight of the loss.")
    use_linear: Bool = Field(False, description="The hinge loss itself, instead of its square.")


op = register("SVMOutput", SVMOutputParams, inputs=("data", "label")).inplace((0, 0)).set_attr("TIsView", True)
backward = register_backward("_backward_SVMOutput", SVMOutputParams, outputs=("data",))


@op.infer_shape
def _(p: SVMOutputParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.merge(0, outs.merge(0, ins[0]))
    if data == ():
        raise ShapeError("data: expected at least one dimension, of the classes, got ()")
    if data is not None:
        label = ins.merge(1, data[:-1])
        if label is not None:
            outs.merge(0, ins.merge(0, (*label, data[-1])))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_SVMOutput", node, [node.inputs[1], Entry(node)], outputs=1)


op.compute()(copy_input)


def _temps(p: SVMOutputParams, call: CallSpec) -> list[Temp]:
    """label and the classes as whole numbers, where they are equal; y (1 for the label's class, else -1) and room."""
    label, out = call.inputs
    full = Temp(out.shape, out.dtype)
    return [Temp(label.shape, "int64"), Temp(out.shape[-1:], "int64"), Temp(out.shape, "bool"), full, full]


@backward.compute(temps=_temps)
def _(p: SVMOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (label, out), slope = ctx.xp, inputs, outputs[0]
    numbers, classes, mask, y, scratch = ctx.temp
    xp.equal(count_up(xp, classes), whole(xp, label, numbers)[..., None], out=mask)
    y.fill(-1)
    xp.copyto(y, 1, where=mask)
    xp.multiply(y, out, out=scratch)
    xp.subtract(p.margin, scratch, out=scratch)
    if p.use_linear:
        xp.greater(scratch, 0, out=mask)
        slope.fill(0)
        xp.copyto(slope, y, where=mask)
    else:
        xp.maximum(scratch, 0, out=scratch)
        xp.multiply(y, scratch, out=slope)
        xp.multiply(slope, 2, out=slope)
    xp.multiply(slope, -p.regularization_coefficient, out=slope)
