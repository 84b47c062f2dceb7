"""A graph as symbol JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..mxnet import NP_SHAPE, VERSION
from .nodes import SOURCE, N, NodeRow

__all__ = ["write"]


def write(
    nodes: Iterable[N],
    heads: Iterable[tuple[N, int]],
    row: Callable[[N], NodeRow[N]],
    *,
    sources: bool = False,
    np_shape: bool = False,
) -> dict[str, Any]:
    """A graph as MXNet 1.9.1 writes it.

    Args:
        nodes: all of them, inputs before their users.
        heads: the outputs.
        row: describes a node.
        sources: add the user's lines as `SOURCE`, for the engine's messages.
        np_shape: say that it is written in numpy mode; nodes that are marked with `NP_SHAPE` say so too.
    """
    document, marked = _written(nodes, heads, row, sources)
    mode = {"is_np_shape": ["int", 1]} if np_shape or marked else {}
    return {**document, "attrs": {**mode, "mxnet_version": ["int", VERSION]}}


def _written(
    nodes: Iterable[N], heads: Iterable[tuple[N, int]], row: Callable[[N], NodeRow[N]], sources: bool
) -> tuple[dict[str, Any], bool]:
    """A graph without `attrs`, and whether one of its nodes is marked with `NP_SHAPE`."""
    marked = False
    number: dict[int, int] = {}
    versions: dict[int, int] = {}
    written: list[dict[str, Any]] = []
    arguments: list[int] = []
    pointers = [0]
    for i, node in enumerate(nodes):
        number[id(node)] = i
        this = row(node)
        entry: dict[str, Any] = {"op": this.op or "null", "name": this.name}
        attrs = dict(sorted(this.attrs.items())) if this.attrs else {}
        marked = attrs.pop(NP_SHAPE, None) is not None or marked
        if sources and this.source:
            attrs[SOURCE] = this.source
        if attrs:
            entry["attrs"] = attrs
        if this.aux or versions:
            inputs = []
            for position, (child, output) in enumerate(this.inputs):
                if position in this.aux:
                    versions[id(child)] = versions.get(id(child), 0) + 1
                inputs.append([number[id(child)], output, versions.get(id(child), 0)])
        else:
            inputs = [[number[id(child)], output, 0] for child, output in this.inputs]
        entry["inputs"] = inputs
        if this.subgraphs:
            inside = [_written(*subgraph, row, sources) for subgraph in this.subgraphs]
            entry["subgraphs"] = [graph for graph, _ in inside]
            marked = marked or any(mark for _, mark in inside)
        written.append(entry)
        if this.op is None:
            arguments.append(i)
        pointers.append(pointers[-1] + this.outputs)
    document = {
        "nodes": written,
        "arg_nodes": arguments,
        "node_row_ptr": pointers,
        "heads": [[number[id(node)], output, 0] for node, output in heads],
    }
    return document, marked
