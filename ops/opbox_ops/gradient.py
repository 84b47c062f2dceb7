"""Building backward nodes: what FGradient rules are written in.

op.set_attr("FGradient", grad_use_in("_backward_abs"))          # _backward_abs(ograd, data)

@op.gradient
def _(node, ograds):
    return backward_node("_backward_FullyConnected", node, [ograds[0], *node.inputs[:2]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from . import registry
from .compute import Arrays, OpContext, Outputs
from .infer import all_same_shape, all_same_type
from .node import Entry, Node
from .operator import Op
from .params import NoParams, Params

__all__ = [
    "ZERO",
    "backward_node",
    "grad_use_in",
    "grad_use_none",
    "grad_use_out",
    "grad_zero",
    "is_zero",
    "linear_gradient",
    "make_node",
]

ZERO = Op("_zero_grad", NoParams, ("like",), ("output",), (), "Zeros in the shape and type of a forward output.")
"""The operator that stands for the gradient of an output that nothing flows into."""
ZERO.infer_shape(all_same_shape)
ZERO.infer_type(all_same_type)
ZERO.set_attr("FIgnoreInputs", (0,))
ZERO.set_attr("FGradient", lambda node, ograds: [None])


@ZERO.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        outputs[0].fill(0)


def is_zero(grad: Entry) -> bool:
    """Return whether an output gradient is all zeros, so that a rule need not make a node for it."""
    return grad.node.op is ZERO


def make_node(op: str, name: str, inputs: Sequence[Entry], attrs: Mapping[str, Any] | None = None) -> Entry:
    """A call of a forward operator inside a gradient; returns its first output."""
    text = {key: str(value) for key, value in (attrs or {}).items()}
    definition = registry.get(op)
    params = _parsed(definition, tuple(text.items()))
    return Entry(Node(op=definition, name=name, attrs=text, params=params, inputs=tuple(inputs)))


@lru_cache(maxsize=1024)
def _parsed(op: Op, attrs: tuple[tuple[str, str], ...]) -> Params:
    return op.parse(dict(attrs))


def backward_node(op: str, node: Node, inputs: Sequence[Entry], outputs: int | None = None) -> list[Entry | None]:
    """A `TIsBackward` node of `node` with its params: one entry for each forward input, None for auxiliary states.

    Args:
        op: name of the backward operator, registered with the same params model as `node`'s.
        node: the forward node.
        inputs: what the backward operator reads, in its own order.
        outputs: how many forward inputs have a gradient, counted from the first; by default all but auxiliary states.
    """
    assert node.op is not None
    aux = node.op.aux_indices(node.params)
    count = len(node.inputs) - len(aux)
    if outputs is not None:
        count = min(outputs, count)
    backward = Node(
        registry.get(op), f"{node.name}_backward", node.attrs, node.params, tuple(inputs), node, node.source, count
    )
    gradients = iter([Entry(backward, i) for i in range(count)])
    if not aux and count == len(node.inputs):
        return list(gradients)
    return [None if i in aux else next(gradients, None) for i in range(len(node.inputs))]


def grad_use_in(op: str) -> registry.GradientRule:
    """NNVM's ElemwiseGradUseIn: the backward operator reads (output gradients, inputs)."""
    return lambda node, ograds: backward_node(op, node, [*ograds, *node.inputs])


def grad_use_out(op: str) -> registry.GradientRule:
    """NNVM's ElemwiseGradUseOut: the backward operator reads (output gradients, outputs)."""
    return lambda node, ograds: backward_node(op, node, [*ograds, *node.entries()])


def grad_use_none(op: str) -> registry.GradientRule:
    """NNVM's ElemwiseGradUseNone: the backward operator reads the output gradients alone."""
    return lambda node, ograds: backward_node(op, node, list(ograds))


def grad_zero(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    """NNVM's MakeZeroGradNodes: no input has a gradient."""
    return [None] * len(node.inputs)


def linear_gradient(*positions: int) -> registry.GradientRule:
    """FGradient of the backward operator of an operator that is linear in some of its inputs.

    The backward operator is the transpose of a linear map, so the gradient of its output gradient is the map itself:
    the forward operator, on the gradients that arrive, with its other inputs as they were. The backward operator must
    read the output gradients first.

    Args:
        positions: of the forward inputs that it is linear in; all when none is given.
    """

    def rule(node: Node, grads: list[Entry]) -> list[Entry | None]:
        forward = node.forward
        assert forward is not None
        assert forward.op is not None
        inputs = list(forward.inputs)
        for i in positions or range(len(inputs)):
            inputs[i] = grads[i]
        again = Node(
            forward.op, f"{node.name}_backward", forward.attrs, forward.params, tuple(inputs), source=node.source
        )
        outputs = forward.num_outputs
        return [*again.entries(), *[None] * (len(node.inputs) - outputs)]

    return rule
