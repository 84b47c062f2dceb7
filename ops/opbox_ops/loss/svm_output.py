"""SVMOutput: out = data, with the gradient of a multi-class hinge loss.

data and out (batch, classes), label (batch,). Each class is a machine of its own with y = 1 for the label and -1
otherwise; with m = margin - y data and c = regularization_coefficient,

    gdata = -c y where m > 0 (use_linear)          gdata = -2 c y m where m > 0

The gradient of out is not read, and label has none. Tang, "Deep Learning using Linear Support Vector Machines" (2013).
"""

from __future__ import annotations

from ..compute import Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params
from ..registry import register, register_backward


class SVMOutputParams(Params):
    margin: Float = Field(1.0, description="Distance from the boundary at which the loss ends.")
    regularization_coefficient: Float = Field(1.0, description="Weight of the loss.")
    use_linear: Bool = Field(False, description="The hinge loss itself, instead of its square.")


op = register("SVMOutput", SVMOutputParams, inputs=("data", "label")).inplace((0, 0)).set_attr("TIsView", True)
backward = register_backward("_backward_SVMOutput", SVMOutputParams, outputs=("data",))


@op.infer_shape
def _(p: SVMOutputParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.merge(0, outs.merge(0, ins[0]))
    if data is not None:
        label = ins.merge(1, data[:-1])
        if label is not None:
            outs.merge(0, ins.merge(0, (*label, data[-1])))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_SVMOutput", node, [node.inputs[1], Entry(node)], outputs=1)


@op.compute()
def _(p: SVMOutputParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0] != OpReq.INPLACE:
        assign(outputs[0], req[0], inputs[0])


@backward.compute()
def _(p: SVMOutputParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp, (label, out) = ctx.xp, inputs
    classes = xp.arange(out.shape[-1])
    y = xp.where(classes == label.astype("i8")[..., None], 1, -1).astype(out.dtype)
    room = p.margin - y * out
    if p.use_linear:
        slope = xp.where(room > 0, y, 0)
    else:
        slope = y * xp.maximum(room, 0) * 2
    assign(outputs[0], req[0], slope * -p.regularization_coefficient)
