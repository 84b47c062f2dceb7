"""The network that an executor runs, as data to be drawn: nodes, and the shape and type of what each puts out."""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox.drawing.folding import Repeat, find_repeats
from opbox.drawing.network import LEARNT, DrawnNetwork, Link, Vertex, in_blocks
from opbox_ops.node import Node
from opbox_protocol.errors import LimitError

from ..graph import Graph
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..task import graph_budget
from .plan import Plan

__all__ = ["network"]

MOST_NODES = 20_000
"""Nodes of a network that is described, at most: it is done between two calls of a worker, and nobody reads more."""
MOST_FOLDED = 3_000
"""Nodes of a network in which repeated blocks are looked for, at most, for the same reason."""


def network(plan: Plan) -> dict[str, Any]:
    """The forward graph of a plan.

    Returns:
        nodes: each after its inputs: `op` (null for a variable), `name`, `source` (the user's line), `attrs`, `kind`
            (operator, argument or auxiliary), `inputs` as [node, output] pairs, and `outputs`: name, shape, datatype.
        heads: the graph's outputs, as [node, output] pairs.
        repeats: what a drawing may fold: for each list of blocks that are alike, the operators of each block by their
            numbers, in one order. A list of blocks inside a block is told of the first such block.

    Raises:
        LimitError: more than MOST_NODES nodes.

    Example:
        >>> network(executor.plan)["nodes"][3]["outputs"]
        [{'name': 'fc1_output', 'shape': [32, 64], 'datatype': 'float32'}]
    """
    graph = plan.graph
    if len(graph.nodes) > MOST_NODES:
        raise LimitError(f"the network: expected at most {MOST_NODES} nodes to describe, got {len(graph.nodes)}")
    values = [value for value in plan.values if value.array is not None and value.array[0] in ("arg", "aux")]
    names = {node.name for node in graph.variables}
    known = [(str(value.array[1]), value) for value in values if value.array is not None and value.array[1] in names]
    with graph_budget():
        shapes = infer_shape(graph, {name: value.shape for name, value in known}, partial=True)
        types = infer_type(graph, {name: str(value.dtype) for name, value in known}, partial=True)
    auxiliary = set(graph.auxiliary_states)

    def row(node: Node) -> dict[str, Any]:
        outputs = [
            {"name": name, "shape": _listed(shapes.of(entry)), "datatype": _name(types.of(entry))}
            for name, entry in zip(node.output_names(), node.entries(), strict=True)
        ]
        return {
            "name": node.name,
            "op": None if node.op is None else node.op.name,
            "kind": "operator" if node.op is not None else "auxiliary" if node in auxiliary else "argument",
            "attrs": {key: text for key, text in node.attrs.items() if not key.startswith("__")},
            "source": node.source,
            "inputs": [[graph.index[entry.node], entry.index] for entry in node.inputs],
            "outputs": outputs,
        }

    rows = [row(node) for node in graph.nodes]
    return {
        "nodes": rows,
        "heads": [[graph.index[head.node], head.index] for head in graph.heads],
        "repeats": _repeats(graph, rows) if len(rows) <= MOST_FOLDED else [],
    }


def _repeats(graph: Graph, rows: list[dict[str, Any]]) -> list[list[list[int]]]:
    """The blocks that come again and again, as `Symbol`'s drawing folds them: found without what is learnt."""
    numbers: dict[int, int] = {}
    vertices: list[Vertex] = []
    operators: list[int] = []
    for node in in_blocks(graph.nodes, graph.heads):
        number = graph.index[node]
        drawn = rows[number]
        if drawn["kind"] == "auxiliary" or (node.op is None and node.name.endswith(LEARNT)):
            continue
        links = [Link(numbers[id(source)], output) for source, output in node.inputs if id(source) in numbers]
        values = {i: f"{output['shape']} {output['datatype']}" for i, output in enumerate(drawn["outputs"])}
        if links:
            operators.append(number)
        numbers[id(node)] = len(vertices)
        vertices.append(Vertex(node.name, drawn["op"], "", "", "", values, "", drawn["attrs"], links))
    heads = [Link(numbers[id(node)], output) for node, output in graph.heads if id(node) in numbers]

    def blocks(repeats: tuple[Repeat, ...]) -> list[list[list[int]]]:
        lists: list[list[list[int]]] = []
        for repeat in repeats:
            lists.append([[operators[i] for i in repeat.block(k)] for k in range(repeat.times)])
            lists += blocks(repeat.inside)
        return lists

    return blocks(tuple(find_repeats(DrawnNetwork(vertices, heads))))


def _listed(shape: tuple[int, ...] | None) -> list[int] | None:
    return None if shape is None else list(shape)


def _name(dtype: Any) -> str | None:
    return None if dtype is None else str(np.dtype(dtype))
