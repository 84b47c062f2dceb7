"""The drawn network of a graph: a vertex for each operator and variable that is shown, and the links between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from opbox_protocol.mxnet import is_hidden

from . import labels

if TYPE_CHECKING:
    from ..symbol.node import Entry, Node

__all__ = ["LEARNT", "DrawnNetwork", "Link", "Vertex", "in_blocks", "network_of"]

LEARNT = (
    *("_weight", "_bias", "_gamma", "_beta", "_parameters"),
    *("_moving_mean", "_moving_var", "_running_mean", "_running_var"),
)
"""Endings of the names of variables that are learnt, and not fed: by MXNet's rule a drawing leaves them out."""


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
    outputs = [node.output_name(i) for i in range(node.visible_outputs())]
    texts = {i: values[name] for i, name in enumerate(outputs) if name in values}
    attrs = {key: value for key, value in node.attrs.items() if not is_hidden(key)}
    op = None if node.op is None else node.op.name
    lines = [f"{node.name}: {op or 'variable'}", *(f"{key} = {value}" for key, value in attrs.items())]
    lines += [f"{outputs[i]}: {text}" for i, text in list(texts.items())[:8]]
    if op is None or node.op is None:
        return Vertex(node.name, None, node.name, "", "input", texts, "\n".join(lines), attrs)
    return Vertex(
        node.name,
        op,
        labels.title(op, attrs),
        labels.details(op, attrs, node.op.required),
        labels.family(op),
        texts,
        "\n".join(lines),
        attrs,
    )
