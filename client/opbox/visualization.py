"""Looking at a network: a table of its layers (`mx.viz.print_summary`), or a drawing (`plot_network`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .base import value_text
from .drawing import Drawing, draw
from .drawing.labels import dims_text
from .live_plot import LivePlot
from .symbol import Symbol
from .symbol.node import Node

__all__ = ["Layer", "LivePlot", "layers", "plot_network", "print_summary"]


def _output_shapes(symbol: Symbol, shape: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """The shapes of everything inside, by output name."""
    if shape is None:
        return {}
    if not isinstance(shape, Mapping):
        raise TypeError(f"shape: expected a dict such as {{'data': (1, 784)}}, got {value_text(shape)}")
    internals = symbol.get_internals()
    _, outputs, _ = internals.infer_shape(**{name: tuple(dims) for name, dims in shape.items()})
    if outputs is None:
        raise ValueError("shape: expected shapes that determine all others, got too few: give those of all inputs")
    return dict(zip(internals.list_outputs(), outputs, strict=True))


def _output_types(symbol: Symbol, dtype: Mapping[str, Any] | None) -> dict[str, str]:
    """The names of the types of everything inside, by output name."""
    if dtype is None:
        return {}
    internals = symbol.get_internals()
    _, outputs, _ = internals.infer_type(**dtype)
    if outputs is None:
        raise ValueError("dtype: expected types that determine all others, got too few: give those of all inputs")
    return {name: kind.__name__ for name, kind in zip(internals.list_outputs(), outputs, strict=True)}


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

    Parameters are counted from the shapes of what is learnt, so that there are none without shapes, and those of every
    operator with them (MXNet knows five, by formulas).

    Raises:
        TypeError: `symbol` is none.
        ValueError: the shapes given do not determine the others.
    """
    ends = [int(line_length * p) for p in positions] if positions[-1] <= 1 else [int(p) for p in positions]
    rows = layers(symbol, shape)
    print("_" * line_length)
    print(_row(["Layer (type)", "Output Shape", "Param #", "Previous Layer"], ends))
    print("=" * line_length)
    for i, row in enumerate(rows):
        before = row.inputs or [""]
        dims = "x".join(str(d) for d in row.shape[1:])
        print(_row([f"{row.name}({row.op or 'null'})", dims, str(row.parameters), before[0]], ends))
        for input_name in before[1:]:
            print(_row(["", "", "", input_name], ends))
        print(("=" if i + 1 == len(rows) else "_") * line_length)
    print(f"Total params: {sum(row.parameters for row in rows)}")
    print("_" * line_length)


class Layer(NamedTuple):
    """A line of a summary: an operator, or the graph's first variable (whose `op` is None).

    `shape` is that of its first output, () where it is unknown; `parameters` counts numbers that are learnt, and
    `inputs` names the layers before it.
    """

    name: str
    op: str | None
    shape: tuple[int, ...]
    parameters: int
    inputs: list[str]


def layers(symbol: Symbol, shape: Mapping[str, Sequence[int]] | None = None) -> list[Layer]:
    """The lines of a network's summary; arguments and errors are those of `print_summary`."""
    if not isinstance(symbol, Symbol):
        raise TypeError(f"symbol: expected a Symbol, got {type(symbol).__name__}")
    shapes = _output_shapes(symbol, shape)
    inputs = set(shape or ())
    nodes = symbol._nodes()
    # As MXNet does it, a graph's first variable has a line of its own, and others have none.
    return [
        Layer(
            node.name,
            None if node.op is None else node.op.name,
            shapes.get(node.output_name(0), ()),
            _parameters(node, shapes, inputs),
            [child.name for child, _ in node.inputs if child.op is not None or child is nodes[0]],
        )
        for i, node in enumerate(nodes)
        if node.op is not None or i == 0
    ]


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


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
    fold: bool = True,
) -> Drawing:
    """A drawing of the network, as a notebook shows a symbol; `render` writes it to a file. It needs no other program.

    Args:
        symbol: the network.
        title: the name of the drawing, and of the file that `render` writes.
        save_format: the format of that file: "pdf", "svg", "png" (which needs `opbox[viz]`) or "dot".
        shape: shapes of its inputs, for those of all values to be written at the edges.
        dtype: types of its inputs, for those of all values.
        node_attrs: graphviz's attributes of all nodes: shape, style, fillcolor, color, fontcolor, fontname, fontsize,
            penwidth, width, height and fixedsize change the picture, others only `Drawing.source`.
        hide_weights: leave learnt variables out.
        fold: draw blocks that repeat once, in a frame that says how often.

    Raises:
        TypeError: `symbol` is none.
        ValueError: the shapes or types do not determine the others; an unknown format; a size that is no number.

    Example:
        >>> mx.viz.plot_network(net, shape={"data": (1, 3, 224, 224)}, save_format="svg").render("resnet")
        'resnet.svg'
    """
    if not isinstance(symbol, Symbol):
        raise TypeError(f"symbol: expected a Symbol, got {type(symbol).__name__}")
    values: dict[str, str] = {name: dims_text(dims) for name, dims in _output_shapes(symbol, shape).items()}
    for name, kind in _output_types(symbol, dtype).items():
        values[name] = f"{values.get(name, '')} {kind}".strip()
    return draw(
        symbol._nodes(),
        symbol._heads,
        values,
        title=title,
        format=save_format,
        node_attrs=node_attrs,
        hide_weights=hide_weights,
        fold=fold,
    )
