"""A symbol as JSON, out and in; `opbox_protocol.symbol_json` has the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol import symbol_json
from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import GraphError
from opbox_protocol.mxnet import NP_SHAPE
from opbox_protocol.shapes import from_mxnet, shape_from_text
from opbox_protocol.symbol_json import NodeRow, ParsedCall
from opbox_protocol.symbol_text import text as file_text

from .. import _schema
from ..numpy_mode import is_np_shape
from ..operator.saved import operator_of
from .node import Entry, Node, ordered, subgraph_states

__all__ = ["document", "parse", "text"]


@collection_paused()
def document(heads: Sequence[Entry], *, sources: bool = False, nodes: Sequence[Node] | None = None) -> dict[str, Any]:
    """The graph as a JSON object.

    Args:
        heads: the outputs.
        sources: add the user's lines as `__source__`, for the engine's messages; files do not have them.
        nodes: the heads' nodes in their order, where that is known.
    """
    nodes = ordered(heads) if nodes is None else nodes
    return symbol_json.write(nodes, heads, _row, sources=sources, np_shape=is_np_shape())


@collection_paused()
def text(heads: Sequence[Entry]) -> str:
    """The graph as MXNet's own writer lays it out."""
    return file_text(document(heads))


def _row(node: Node) -> NodeRow[Node]:
    kind = node.op.name if node.op is not None else None
    subgraphs = [(ordered(heads), heads) for heads in node.subgraphs]
    return NodeRow(kind, node.name, node.attrs, node.inputs, node.aux(), node.num_outputs(), node.source, subgraphs)


@collection_paused()
def parse(document: str, operators: Mapping[str, Any] | None = None) -> list[Entry]:
    """The heads of the graph in a JSON text, of any version of MXNet.

    In numpy mode, what is unknown in the shapes of variables of a graph that was not written in it becomes -1, or None.

    Args:
        document: the text.
        operators: those of the user's own that came with it, by the names of their nodes.

    Raises:
        GraphError: it is not JSON, or not a graph; UnknownOperatorError, ParamError for what its nodes say.
    """
    try:
        return symbol_json.read(document, _SymbolNodeMaker(operators), keep_mode=True)
    except GraphError as error:
        error.reword(f"symbol JSON: {error}")
        raise


class _SymbolNodeMaker:
    """Makes this side's nodes (see symbol_json.Maker); calls that are alike are checked once."""

    def __init__(self, operators: Mapping[str, Any] | None) -> None:
        self._operators = operators
        self._calls: dict[tuple[Any, ...], ParsedCall] = {}

    def call(self, kind: str, name: str, attrs: Mapping[str, str], subgraphs: Sequence[Sequence[Entry]]) -> ParsedCall:
        key = (kind, *attrs.items())
        known = self._calls.get(key)
        if known is not None and not subgraphs:
            return known
        own = operator_of(kind, attrs, name, self._operators)
        op = own or _schema.get(kind)
        op.check(attrs, name)
        states = subgraph_states(op, attrs, subgraphs) if subgraphs else op.aux_indices(attrs)
        call = ParsedCall(op.input_names(attrs), states, (op, subgraphs))
        if own is None and not subgraphs:
            self._calls[key] = call
        return call

    def variable(self, name: str, attrs: dict[str, str], source: str | None) -> Node:
        in_mode = attrs.pop(NP_SHAPE, None) is not None
        if is_np_shape() and not in_mode and "__shape__" in attrs:
            attrs["__shape__"] = _in_numpy_mode(attrs["__shape__"])
        return Node(None, name, attrs, [], source)

    def node(self, call: ParsedCall, name: str, attrs: dict[str, str], inputs: list[Entry], source: str | None) -> Node:
        op, subgraphs = call.spec
        attrs.pop(NP_SHAPE, None)
        return Node(op, name, attrs, inputs, source, subgraphs)

    def outputs(self, node: Node) -> int:
        return node.num_outputs()

    def annotate(self, node: Node, key: str, value: str) -> bool:
        if node.op is None:
            node.attrs[key] = value
        return node.op is None


def _in_numpy_mode(text: str) -> str:
    """The `__shape__` of a graph of the other mode; what is no shape stays, for inference to refuse."""
    try:
        return str(from_mxnet(shape_from_text(text)))
    except ValueError:
        return text
