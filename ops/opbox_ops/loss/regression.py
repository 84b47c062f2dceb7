"""LinearRegressionOutput, LogisticRegressionOutput, MAERegressionOutput: a prediction, and the gradient of its loss.

data and out (batch, *outputs), label as many elements (data's shape by default; (batch,) for data (batch, 1)).
With n outputs a sample:

    LinearRegressionOutput    out = data              gdata = (out - label) grad_scale / n
    LogisticRegressionOutput  out = sigmoid(data)     gdata = (out - label) grad_scale / n
    MAERegressionOutput       out = data              gdata = sign(out - label) grad_scale / n

The gradient of out is not read, and label has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList, known, show_shape, size_of
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import register, register_backward


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


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _register(
    name: str, predict: Callable[[Any, Array], Array] | None, error: Callable[[Any, Array, Array], Array]
) -> None:
    op = register(name, RegressionParams, inputs=("data", "label")).inplace((0, 0))
    backward = register_backward(f"_backward_{name}", RegressionParams, outputs=("data",)).inplace((1, 0))
    op.infer_shape(_infer)
    if predict is None:
        op.set_attr("TIsView", True)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(f"_backward_{name}", node, [node.inputs[1], Entry(node)], outputs=1)

    @op.compute()
    def _(p: RegressionParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        if predict is not None and req[0]:
            assign(outputs[0], req[0], predict(ctx.xp, inputs[0]))
        elif req[0] != OpReq.INPLACE:
            assign(outputs[0], req[0], inputs[0])

    @backward.compute()
    def _(p: RegressionParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        label, out = inputs
        each = size_of(out.shape[1:])
        assign(outputs[0], req[0], error(ctx.xp, out, label.reshape(out.shape)) * (p.grad_scale / max(1, each)))


_register("LinearRegressionOutput", None, lambda xp, out, label: out - label)
_register("LogisticRegressionOutput", _sigmoid, lambda xp, out, label: out - label)
_register("MAERegressionOutput", None, lambda xp, out, label: xp.sign(out - label))
