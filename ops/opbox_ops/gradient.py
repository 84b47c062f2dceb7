"""Building backward nodes: what FGradient rules are written in.

op.set_attr("FGradient", grad_use_in("_backward_abs"))          # _backward_abs(ograd, data)

@op.gradient
def _(node, ograds):
    return backward_node("_backward_FullyConnected", node, [ograds[0], *node.inputs[:2]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import registry
from .node import Entry, Node

__all__ = ["backward_node", "grad_use_in", "grad_use_none", "grad_use_out", "grad_zero", "make_node"]


def make_node(op: str, name: str, inputs: Sequence[Entry], attrs: Mapping[str, Any] | None = None) -> Entry:
    """A call of a forward operator inside a gradient; returns its first output."""
    found = registry.get(op)
    text = {key: str(value) for key, value in (attrs or {}).items()}
    return Entry(Node(op=found, name=name, attrs=text, params=found.parse(text), inputs=tuple(inputs)))


def backward_node(op: str, node: Node, inputs: Sequence[Entry], outputs: int | None = None) -> list[Entry | None]:
    """A `TIsBackward` node of `node` with its params: one entry for each forward input, None for auxiliary states.

    Args:
        op: name of the backward operator, registered with the same params model as `node`'s.
        node: the forward node.
        inputs: what the backward operator reads, in its own order.
        outputs: how many forward inputs have a gradient, counted from the first; by default all but auxiliary states.
    """
    made = Node(
        op=registry.get(op),
        name=f"{node.name}_backward",
        attrs=node.attrs,
        params=node.params,
        inputs=tuple(inputs),
        forward=node,
        source=node.source,
    )
    assert node.op is not None
    aux = set(node.op.aux_indices(node.params))
    grads: list[Entry | None] = []
    produced = 0
    for i in range(len(node.inputs)):
        if i in aux or (outputs is not None and produced >= outputs):
            grads.append(None)
        else:
            grads.append(Entry(made, produced))
            produced += 1
    return grads


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
