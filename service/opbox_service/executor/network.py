"""A network that runs on the server: its nodes with the shape and type of each output as data, and a drawing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from opbox.drawing import Drawing
from opbox.drawing.labels import dims_text
from opbox.drawing.network import LEARNT, DrawnNetwork, Link, Vertex, in_blocks, vertex_of
from opbox_ops.node import Node
from opbox_protocol.errors import LimitError

from ..graph.ir import Graph
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..task import graph_budget
from .plan import Plan

__all__ = ["Variables", "drawing", "network", "variables_of"]

Variables: TypeAlias = "Mapping[str, tuple[tuple[int, ...] | None, Any]]"
"""Shape and type by variable, as far as they are known: -1 for a length that varies, None for any rank or type."""

MAX_NODES = 20_000
"""Maximum number of nodes to describe: it happens between two calls of a worker."""
LARGEST_DRAWN = 5_000
"""Maximum number of nodes to draw, as repeated blocks are searched."""
LARGEST_DRAWING = 1_000
"""Maximum number of boxes of a drawing (a tenth of a second)."""


def variables_of(plan: Plan) -> Variables:
    """The shapes and types that a plan was compiled for."""
    values = [value for value in plan.values if value.array is not None and value.array[0] in ("arg", "aux")]
    names = {node.name for node in plan.graph.variables}
    return {
        str(value.array[1]): (value.shape, value.dtype)
        for value in values
        if value.array is not None and value.array[1] in names
    }


def network(graph: Graph, variables: Variables) -> dict[str, Any]:
    """A graph as data.

    Args:
        graph: the forward graph.
        variables: what is known of its arguments and auxiliary states.

    Returns:
        nodes: each after its inputs: `op` (null for a variable), `name`, `source` (the user's line), `attrs`, `kind`
            (operator, argument or auxiliary), `inputs` as [node, output] pairs, and `outputs`: name, shape, datatype.
        heads: the graph's outputs, as [node, output] pairs.

    Raises:
        LimitError: more than MAX_NODES nodes.

    Example:
        >>> network(plan.graph, variables_of(plan))["nodes"][3]["outputs"]
        [{'name': 'fc1_output', 'shape': [32, 64], 'datatype': 'float32'}]
    """
    if len(graph.nodes) > MAX_NODES:
        raise LimitError(f"the network: expected at most {MAX_NODES} nodes to describe, got {len(graph.nodes)}")
    known_types = {name: dtype for name, (_, dtype) in variables.items() if dtype is not None}
    with graph_budget():
        shapes = infer_shape(graph, {name: shape for name, (shape, _) in variables.items()}, partial=True)
        types = infer_type(graph, known_types, partial=True)
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
    return {"nodes": rows, "heads": [[graph.index[head.node], head.index] for head in graph.heads]}


def drawing(graph: Graph, variables: Variables, *, fold: bool = True, parameters: bool = False) -> str:
    """A drawing of a graph as SVG, laid out as that of a `Symbol`.

    Each operator and variable is a group whose attribute `data-nodes` has the number of its node in `network`, and
    after it the numbers of the nodes in further blocks that it stands for.

    Args:
        graph, variables: as of `network`.
        fold: draw blocks that repeat once, in a frame that says how often.
        parameters: draw variables that are learnt and auxiliary states too.

    Raises:
        LimitError: the network, or the drawing of it, is too large.
    """
    if len(graph.nodes) > LARGEST_DRAWN:
        raise LimitError(f"the drawing: expected a network of at most {LARGEST_DRAWN} nodes, got {len(graph.nodes)}")
    rows = network(graph, variables)["nodes"]
    numbers: dict[int, int] = {}
    vertices: list[Vertex] = []
    for node in in_blocks(graph.nodes, graph.heads):
        number = graph.index[node]
        row = rows[number]
        learnt = row["kind"] == "auxiliary" or (node.op is None and node.name.endswith(LEARNT))
        if learnt and not parameters:
            continue
        numbers[id(node)] = len(vertices)
        outputs = [(output["name"], _text(output)) for output in row["outputs"]]
        vertex = vertex_of(node.name, row["op"], row["attrs"], outputs, _required(node))
        vertex.node = number
        vertex.inputs = [Link(numbers[id(source)], output) for source, output in node.inputs if id(source) in numbers]
        vertices.append(vertex)
    heads = [Link(numbers[id(node)], output) for node, output in graph.heads if id(node) in numbers]
    if not vertices:
        return drawing(graph, variables, fold=fold, parameters=True)
    title = ", ".join(graph.output_names[:3])
    return Drawing(DrawnNetwork(vertices, heads), title, "svg", fold=fold, largest=LARGEST_DRAWING).svg


def _required(node: Node) -> tuple[str, ...]:
    """The parameters that a node's operator must have."""
    if node.op is None:
        return ()
    return tuple(name for name, field in node.op.params.model_fields.items() if field.is_required())


def _text(output: dict[str, Any]) -> str:
    """What a drawing writes at an output: 32×64."""
    shape = output["shape"]
    return "" if shape is None else dims_text(["?" if length < 0 else length for length in shape])


def _listed(shape: tuple[int, ...] | None) -> list[int] | None:
    return None if shape is None else list(shape)


def _name(dtype: Any) -> str | None:
    return None if dtype is None else str(np.dtype(dtype))
