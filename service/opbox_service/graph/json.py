"""Graphs from MXNet's symbol JSON, and back; `opbox_protocol.symbol_json` has the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opbox_ops import registry
from opbox_ops.control_flow.subgraph import SubgraphParams
from opbox_ops.node import Entry, Node
from opbox_protocol import symbol_json
from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import LimitError
from opbox_protocol.symbol_json import NodeRow, ParsedCall

from ..task import checkpoint
from .ir import Graph
from .subgraph import GraphSubgraph, subgraphs_of

__all__ = ["dump", "load"]


@collection_paused()
def load(
    document: str | bytes | Mapping[str, Any], *, max_nodes: int | None = None, max_edges: int | None = None
) -> Graph:
    """Read a graph.

    Args:
        document: JSON text, or what it parses to.
        max_nodes, max_edges: the most nodes, and inputs of all nodes together, for untrusted input.

    Raises:
        GraphError: the text is no JSON, or the JSON no graph: wrong types, a cycle, a dangling index, equal names.
        LimitError: more than `max_nodes` nodes, or more inputs or outputs than `max_edges`, those of subgraphs counted;
            or subgraphs in too many subgraphs.
        UnknownOperatorError, ParamError: with the node's name and the user's line.
        UnsupportedError: an operator that has no subgraphs comes with some.
    """
    heads = symbol_json.read(
        document, _GraphNodeMaker(max_edges), max_nodes=max_nodes, max_edges=max_edges, keep_mode=True
    )
    return _graph(heads)


def _graph(heads: Sequence[tuple[Node, int]]) -> Graph:
    return Graph(tuple(Entry(node, output) for node, output in heads))


def dump(graph: Graph) -> dict[str, Any]:
    """The graph as MXNet 1.9.1 writes it, the users' lines added; `json.dumps` of it loads in MXNet."""
    return symbol_json.write(graph.nodes, _heads(graph), _row, sources=True)


def _heads(graph: Graph) -> list[tuple[Node, int]]:
    return [(head.node, head.index) for head in graph.heads]


def _row(node: Node) -> NodeRow[Node]:
    inputs = [(entry.node, entry.index) for entry in node.inputs]
    if node.op is None:
        return NodeRow(None, node.name, node.attrs, inputs, (), 1, node.source)
    aux = node.op.aux_indices(node.params)
    inside = [(subgraph.graph.nodes, _heads(subgraph.graph)) for subgraph in subgraphs_of(node)]
    return NodeRow(node.op.name, node.name, node.attrs, inputs, aux, node.num_outputs, node.source, inside)


class _GraphNodeMaker:
    """Makes the engine's nodes (see symbol_json.Maker); the parameters of calls that are alike are one object.

    Args:
        max_outputs: of all nodes together.
    """

    def __init__(self, max_outputs: int | None) -> None:
        self._calls: dict[tuple[Any, ...], ParsedCall] = {}
        self._left = max_outputs

    def call(
        self, kind: str, name: str, attrs: Mapping[str, str], subgraphs: Sequence[Sequence[tuple[Node, int]]]
    ) -> ParsedCall:
        checkpoint()
        key = (kind, *attrs.items())
        call = self._calls.get(key)
        if call is None:
            op = registry.get(kind)
            params = op.parse(attrs)
            if isinstance(params, SubgraphParams):
                params = params.having([GraphSubgraph(_graph(heads)) for heads in subgraphs])
            call = ParsedCall(op.input_names(params), op.aux_indices(params), (op, params))
            if not subgraphs:
                self._calls[key] = call
        return call

    def variable(self, name: str, attrs: dict[str, str], source: str | None) -> Node:
        checkpoint()
        return Node(None, name, attrs, source=source)

    def node(
        self, call: ParsedCall, name: str, attrs: dict[str, str], inputs: list[tuple[Node, int]], source: str | None
    ) -> Node:
        op, params = call.spec
        if self._left is not None:
            self._left -= op.num_outputs(params)
            if self._left < 0:
                raise LimitError(
                    "the graph's nodes have too many outputs together: expected as many as its limit of edges"
                )
        return Node(op, name, attrs, params, tuple([Entry(node, output) for node, output in inputs]), source=source)

    def outputs(self, node: Node) -> int:
        return node.num_outputs

    def annotate(self, node: Node, key: str, value: str) -> bool:
        if node.op is None:
            # A variable that this load has made; no graph holds it yet.
            assert isinstance(node.attrs, dict)
            node.attrs[key] = value
        return node.op is None
