"""The drawn network of a graph: a vertex for each operator and variable that is shown, and the links between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from opbox_protocol.mxnet import is_hidden

from . import labels

if TYPE_CHECKING:
    from ..symbol.node import Entry, Node

__all__ = ["LEARNT", "DrawnNetwork", "Link", "Vertex", "in_blocks", "network_of", "vertex_of"]

LEARNT = (
    *("_weight", "_bias", "_gamma", "_beta", "_parameters"),
    *("_moving_mean", "_moving_var", "_running_mean", "_running_var"),
)
"""Name endings of learnt variables, which a drawing leaves out as MXNet's does."""


class Link(NamedTuple):
    """A value that a vertex reads: output `output` of the vertex number `source`."""

    source: int
    output: int


@dataclass
class Vertex:
    """An operator call or a variable.

    Attributes:
        name: of the node.
        op: the operator's name; None for a variable.
        title, details: the words of its row.
        family: which colour it has.
        inputs: what it reads of what is shown.
        values: shape and type of its outputs as text, by the output's number, where they are known.
        tip: everything about it, for a pointer that rests on it.
        attrs: its parameters, as strings.
        node: the number that its node has in the graph, for a program that works with the picture; None without one.
    """

    name: str
    op: str | None
    title: str
    details: str
    family: str
    values: dict[int, str]
    tip: str
    attrs: Mapping[str, str]
    inputs: list[Link] = field(default_factory=list)
    node: int | None = None


@dataclass
class DrawnNetwork:
    """The vertices in the graph's order, inputs before users, and what of them the graph returns."""

    vertices: list[Vertex]
    heads: list[Link]


def network_of(
    nodes: Sequence[Node],
    heads: Iterable[Entry],
    values: Mapping[str, str] | None = None,
    *,
    hide_weights: bool = True,
) -> DrawnNetwork:
    """Return the network to draw for a graph.

    Args:
        nodes: in their order.
        heads: the graph's outputs.
        values: what is written at outputs (shape, type), by the outputs' names.
        hide_weights: leave out variables that are learnt, or that operators keep their statistics in.
    """
    values = values or {}
    written = {id(node.inputs[i][0]) for node in nodes for i in node.aux()}
    numbers: dict[int, int] = {}
    vertices: list[Vertex] = []
    heads = list(heads)
    for node in in_blocks(nodes, heads):
        if hide_weights and node.op is None and (node.name.endswith(LEARNT) or id(node) in written):
            continue
        numbers[id(node)] = len(vertices)
        vertex = _vertex(node, values)
        vertex.inputs = [Link(numbers[id(child)], index) for child, index in node.inputs if id(child) in numbers]
        vertices.append(vertex)
    return DrawnNetwork(vertices, [Link(numbers[id(node)], index) for node, index in heads if id(node) in numbers])


def in_blocks(nodes: Sequence[Any], heads: Iterable[tuple[Any, int]]) -> list[Any]:
    """The nodes, inputs before users, in an order in which blocks that follow each other stay whole.

    Args:
        nodes: the client's or an engine's: what has `inputs`, pairs of a node and a number.
        heads: such pairs.

    Of what a node reads, that comes first which needs the longest chain of nodes: with what a step reads of the step
    before it comes that whole step, and what the step has of its own follows.
    """
    depth: dict[int, int] = {}
    for node in nodes:
        depth[id(node)] = 1 + max((depth[id(child)] for child, _ in node.inputs), default=0)

    def rest(entries: Iterable[tuple[Any, int]]) -> Iterator[Any]:
        return iter(sorted((node for node, _ in entries), key=lambda node: -depth[id(node)]))

    order: list[Any] = []
    seen: set[int] = set()
    stack: list[tuple[Any, Iterator[Any]]] = [(None, rest(heads))]
    while stack:
        reader, waiting = stack[-1]
        child = next((child for child in waiting if id(child) not in seen), None)
        if child is not None:
            seen.add(id(child))
            stack.append((child, rest(child.inputs)))
        else:
            stack.pop()
            if reader is not None:
                order.append(reader)
    return order


def _vertex(node: Node, values: Mapping[str, str]) -> Vertex:
    outputs = [(name := node.output_name(i), values.get(name, "")) for i in range(node.visible_outputs())]
    if node.op is None:
        return vertex_of(node.name, None, node.attrs, outputs)
    return vertex_of(node.name, node.op.name, node.attrs, outputs, node.op.required)


def vertex_of(
    name: str,
    op: str | None,
    attrs: Mapping[str, str],
    outputs: Sequence[tuple[str, str]],
    required: tuple[str, ...] = (),
) -> Vertex:
    """The vertex of an operator call, or of a variable; it reads nothing yet.

    Args:
        name, op, attrs: of the node; `op` is None for a variable. Hidden attributes are left out.
        outputs: the name of each output, and its shape and type as text: "" where they are unknown.
        required: the parameters that the operator must have.
    """
    attrs = {key: value for key, value in attrs.items() if not is_hidden(key)}
    texts = {i: text for i, (_, text) in enumerate(outputs) if text}
    lines = [f"{name}: {op or 'variable'}", *(f"{key} = {value}" for key, value in attrs.items())]
    tip = "\n".join([*lines, *[f"{output}: {text}" for output, text in outputs if text][:8]])
    if op is None:
        return Vertex(name, None, name, "", "input", texts, tip, attrs)
    title, details = labels.title(op, attrs), labels.details(op, attrs, required)
    return Vertex(name, op, title, details, labels.family(op), texts, tip, attrs)
