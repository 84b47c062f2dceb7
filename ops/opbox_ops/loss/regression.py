"""LinearRegressionOutput, LogisticRegressionOutput, MAERegressionOutput: a prediction, and the gradient of its loss.

data and out (batch, *outputs), label as many elements (data's shape by default; (batch,) for data (batch, 1)).
With n outputs a sample:

    LinearRegressionOutput    out = data              gdata = (out - label) grad_scale / n
    LogisticRegressionOutput  out = sigmoid(data)     gdata = (out - label) grad_scale / n
    MAERegressionOutput       out = data              gdata = ±grad_scale / n, + where out > label

The gradient of out is not read, and label has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import FLOATS, ShapeList, TypeList, all_same_type, known, show_shape, size_of, summary
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import register, register_backward
from ..shape.view import copy_input


class RegressionParams(Params):
    grad_scale: Float = Field(1.0, description="Factor on the gradient.")


def _infer(p: RegressionParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.merge(0, outs.merge(0, ins[0]))
    if data is None:
        return
    label = ins[1]
    if label is None:
        # A column of predictions takes a vector of labels, as the iterators give it.
        if len(data) == 2 and data[1] == 1:
            ins.merge(1, data[:1])
        elif len(data) != 2 or data[1] >= 0:
            ins.merge(1, data)
        return
    if len(label) == len(data):
        if label != data:
            ins.merge(0, outs.merge(0, ins.merge(1, data)))
    elif known(data) and known(label) and (label[:1] != data[:1] or size_of(label) != size_of(data)):
        raise ShapeError(
            f"expected as many elements as data {show_shape(data)} with the same batch, got {show_shape(label)}",
            side="input",
            index=1,
        )


@summary("first")
def _infer_types(p: RegressionParams, ins: TypeList, outs: TypeList) -> None:
    ins.only(0, *FLOATS)
    all_same_type(p, ins, outs)


def _sigmoid(xp: Any, x: Array, out: Array) -> None:
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.reciprocal(out, out=out)


def _register(name: str, predict: Callable[[Any, Array, Array], None] | None, sign: bool = False) -> None:
    """Register one; the gradient is the difference of out and label, or only whether it is above 0."""
    op = register(name, RegressionParams, inputs=("data", "label")).inplace((0, 0))
    backward = register_backward(f"_backward_{name}", RegressionParams, outputs=("data",)).inplace((1, 0))
    op.infer_shape(_infer)
    op.infer_type(_infer_types)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(f"_backward_{name}", node, [node.inputs[1], Entry(node)], outputs=1)

    if predict is None:
        op.set_attr("TIsView", True)
        op.compute()(copy_input)
    else:

        @op.compute()
        def _(p: RegressionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
            predict(ctx.xp, inputs[0], outputs[0])

    @backward.compute()
    def _(p: RegressionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, (label, out), gdata = ctx.xp, inputs, outputs[0]
        xp.subtract(out, label.reshape(out.shape), out=gdata)
        if sign:
            # -1 also where they are equal, or NaN.
            xp.greater(gdata, 0, out=gdata, casting="unsafe")
            xp.multiply(gdata, 2, out=gdata)
            xp.subtract(gdata, 1, out=gdata)
        xp.multiply(gdata, p.grad_scale / max(1, size_of(out.shape[1:])), out=gdata)


_register("LinearRegressionOutput", None)
_register("LogisticRegressionOutput", _sigmoid)
_register("MAERegressionOutput", None, sign=True)
