"""Looking at a network: a table of its layers (`mx.viz.print_summary`), or a drawing (`plot_network`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol.errors import MXNetError

from .symbol import Symbol
from .symbol.node import Node, ordered

__all__ = ["plot_network", "print_summary"]

Shapes = dict[tuple[int, int], tuple[int, ...]]


def _output_shapes(symbol: Symbol, shape: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """The shapes of everything inside, by output name."""
    if shape is None:
        return {}
    internals = symbol.get_internals()
    _, outputs, _ = internals.infer_shape(**{name: tuple(dims) for name, dims in shape.items()})
    if outputs is None:
        raise ValueError("shape: expected shapes that determine all others, got too few: give those of all inputs")
    return dict(zip(internals.list_outputs(), outputs, strict=True))


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, Sequence[int]] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a line for each layer: name and operator, output shape, number of parameters, the layers before it.

    Args:
        symbol: the network.
        shape: shapes of its inputs, for the shapes and counts.
        line_length: characters of a line.
        positions: where the columns end, as parts of the line.

    Raises:
        TypeError: `symbol` is none.
        ValueError: the shapes given do not determine the others.
    """
    if not isinstance(symbol, Symbol):
        raise TypeError(f"symbol: expected a Symbol, got {type(symbol).__name__}")
    shapes = _output_shapes(symbol, shape)
    inputs = set(shape or ())
    ends = [int(line_length * p) for p in positions] if positions[-1] <= 1 else [int(p) for p in positions]
    print("_" * line_length)
    print(_row(["Layer (type)", "Output Shape", "Param #", "Previous Layer"], ends))
    print("=" * line_length)
    total = 0
    shown = [node for node in ordered(symbol._heads) if node.op is not None or node.name in inputs]
    for i, node in enumerate(shown):
        count = _parameters(node, shapes, inputs)
        total += count
        kind = node.op.name if node.op is not None else "null"
        dims = shapes.get(node.output_name(0), ())
        before = [c.name for c, _ in node.inputs if c.op is not None or c.name in inputs] or [""]
        shape_text = "x".join(str(d) for d in dims[1:])
        print(_row([f"{node.name}({kind})", shape_text, str(count), before[0]], ends))
        for input_name in before[1:]:
            print(_row(["", "", "", input_name], ends))
        print(("=" if i + 1 == len(shown) else "_") * line_length)
    print(f"Total params: {total}")
    print("_" * line_length)


def _row(fields: Sequence[str], ends: Sequence[int]) -> str:
    line = ""
    for field, end in zip(fields, ends, strict=True):
        line = (line + field)[:end].ljust(end)
    return line


def _parameters(node: Node, shapes: Mapping[str, tuple[int, ...]], inputs: set[str]) -> int:
    """Elements of the variables that a node learns from; its inputs, labels and states are none."""
    total = 0
    written = node.aux()
    for i, (child, _) in enumerate(node.inputs):
        if child.op is None and child.name not in inputs and i not in written and not child.name.endswith("label"):
            size = 1
            for d in shapes.get(child.name, (0,)):
                size *= d
            total += size
    return total


_COLORS = {
    "Convolution": "#fb8072",
    "Deconvolution": "#fb8072",
    "FullyConnected": "#fb8072",
    "BatchNorm": "#bebada",
    "Activation": "#ffffb3",
    "LeakyReLU": "#ffffb3",
    "Pooling": "#80b1d3",
    "Concat": "#fdb462",
    "Flatten": "#fdb462",
    "Reshape": "#fdb462",
    "SoftmaxOutput": "#b3de69",
}


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Any = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """A drawing of the network, as the `Digraph` of the package graphviz.

    Args:
        symbol: the network.
        title, save_format: of the file that `render` writes.
        shape: shapes of its inputs, to be written at the edges.
        dtype: has no effect.
        node_attrs: graphviz attributes of all nodes.
        hide_weights: leave learned variables out.

    Raises:
        MXNetError: graphviz is not installed.
    """
    try:
        from graphviz import Digraph  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise MXNetError("plot_network: needs the Python package graphviz: pip install graphviz") from None
    shapes = _output_shapes(symbol, shape)
    drawing = Digraph(name=title, format=save_format)
    look = {"shape": "box", "fixedsize": "false", "style": "filled", **(node_attrs or {})}
    nodes = ordered(symbol._heads)
    written = {id(node.inputs[i][0]) for node in nodes for i in node.aux()}
    learned = ("_weight", "_bias", "_gamma", "_beta", "_moving_mean", "_moving_var", "_running_mean", "_running_var")
    hidden = {id(n) for n in nodes if n.op is None and (n.name.endswith(learned) or id(n) in written)}
    for node in nodes:
        if hide_weights and id(node) in hidden:
            continue
        kind = node.op.name if node.op is not None else ""
        label = f"{node.name}\n{kind}" if kind else node.name
        drawing.node(node.name, label=label, fillcolor=_COLORS.get(kind, "#fccde5" if kind else "#8dd3c7"), **look)
        for child, index in node.inputs:
            if not (hide_weights and id(child) in hidden):
                dims = shapes.get(child.output_name(index), ())
                drawing.edge(node.name, child.name, dir="back", arrowtail="open", label="x".join(map(str, dims[1:])))
    return drawing
