"""`mx.onnx.export_model`: a symbol and its parameters as an ONNX file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..symbol import Symbol
from ..symbol.node import Entry, Node
from . import exporters
from .builder import OnnxGraph
from .exporting import EXPORTERS, ExportCall, convert, refuse
from .network import ExportNetwork
from .other_sizes import check_sizes
from .package import NEWEST, OPSET, require, tensor_type
from .sources import loaded_params, loaded_symbol
from .writing import write

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

__all__ = ["export_model", "get_operator_support"]

assert exporters.__all__  # declares the converters


def get_operator_support(opset_version: int | None = None) -> list[str]:
    """The operators that `export_model` converts.

    Args:
        opset_version: as in MXNet; models are written for opset 17 alone.

    Raises:
        ValueError: an opset below 17 or above those known.
    """
    if opset_version is not None and not OPSET <= opset_version <= NEWEST:
        raise ValueError(
            f"get_operator_support: opset_version: expected {OPSET}, the one written, to {NEWEST}, got {opset_version}"
        )
    return sorted(EXPORTERS)


def export_model(
    sym: Symbol | str | Path,
    params: str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    in_shapes: Sequence[Sequence[int]] | None = None,
    in_types: Any = np.float32,
    onnx_file_path: str | Path = "model.onnx",
    verbose: bool = False,
    dynamic: bool = False,
    dynamic_input_shapes: Sequence[Sequence[int | None]] | None = None,
    run_shape_inference: bool = False,
    input_type: Any = None,
    input_shape: Sequence[Sequence[int]] | None = None,
) -> str:
    """Write a network as an ONNX model (opset 17), for inference, and check it.

    Args:
        sym: the network, or the path of its `-symbol.json`.
        params: its parameters by name, with or without `arg:` and `aux:`; a list of arguments and states; or a path.
        in_shapes: the inputs' shapes, in the order of `sym.list_inputs()`; labels are no inputs.
        in_types: their element type, or a list of them.
        onnx_file_path: the file.
        verbose: log each operator as it is converted.
        dynamic: let dimensions of the inputs vary.
        dynamic_input_shapes: which: the shapes with None in these places; by default all that the network lets vary.
        run_shape_inference: note the shapes of all values in the file.
        input_type, input_shape: MXNet's older names of `in_types` and `in_shapes`.

    Returns:
        the path.

    Raises:
        MXNetError: an operator has no converter, or ONNX lacks what it does; names the nodes.
        ValueError: arguments do not fit the network.
        OSError: the file cannot be written; none is left behind.

    Example:
        >>> mx.onnx.export_model(net, mod.get_params(), [(1, 784)], onnx_file_path="mlp.onnx")
        'mlp.onnx'
    """
    require()
    symbol, arrays = loaded_symbol(sym), loaded_params(params)
    _refuse_unknown(symbol)
    network = ExportNetwork(
        symbol,
        arrays,
        input_shape if input_shape is not None else in_shapes,
        input_type if input_type is not None else in_types,
        dynamic,
        dynamic_input_shapes,
    )
    model, values = _converted(network, verbose)
    check_sizes(network, model, values)
    return write(model, onnx_file_path, run_shape_inference)


def _refuse_unknown(symbol: Symbol) -> None:
    nodes: dict[str, list[str]] = {}
    for node in symbol._nodes():
        if node.op is not None and node.op.name not in EXPORTERS:
            nodes.setdefault(node.op.name, []).append(node.name)
    if nodes:
        listed = "; ".join(f"{op} ({', '.join(names)})" for op, names in sorted(nodes.items()))
        raise MXNetError(
            f"export_model: expected operators that have a converter (mx.onnx.get_operator_support()), got {listed}: "
            "write these by other operators"
        )


def _converted(network: ExportNetwork, verbose: bool) -> tuple[ModelProto, dict[tuple[int, int], str]]:
    """The network as an ONNX model, and the names of its values there."""
    from onnx import helper

    graph, values = OnnxGraph(), dict[tuple[int, int], str]()
    inputs: list[ValueInfoProto] = []
    for node in network.nodes:
        if node.op is None:
            graph.unique(node.name)
    for node in network.nodes:
        if verbose and node.op is not None:
            logging.info("converting %s (%s)", node.name, node.op.name)
        if id(node) in network.zero_states:
            values[id(node), 0] = ""
        elif node.op is not None:
            _convert(network, graph, values, node)
        elif node.name in network.params:
            values[id(node), 0] = node.name
            graph.parameter(node.name, network.params[node.name])
        elif node.name in network.input_shapes:
            values[id(node), 0] = node.name
            shape = network.input_shapes[node.name]
            inputs.append(helper.make_tensor_value_info(node.name, tensor_type(network.dtype(node, 0)), shape))
    outputs: list[ValueInfoProto] = []
    for node, index in network.heads:
        if (id(node), index) not in values:
            name = node.output_name(index)
            raise MXNetError(
                f"export_model: {node.name}: expected outputs that ONNX can make, got a network with {name}"
            )
        name = values[id(node), index]
        info = helper.make_tensor_value_info(name, tensor_type(network.dtype(node, index)), network.shape(node, index))
        if name in [output.name for output in outputs] or node.op is None or _is_constant(graph, name):
            (info.name,) = graph.node("Identity", [name], 1, name, {})
        outputs.append(info)
    used = {name for node in graph.nodes for name in node.input}
    constants = [tensor for tensor in graph.initializers if tensor.name in used]
    whole = helper.make_graph(graph.nodes, "opbox", inputs, outputs, constants)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(whole, opset_imports=opset, ir_version=8, producer_name="opbox"), values


def _is_constant(graph: OnnxGraph, name: str) -> bool:
    return any(tensor.name == name for tensor in graph.initializers)


def _convert(network: ExportNetwork, graph: OnnxGraph, values: dict[tuple[int, int], str], node: Node) -> None:
    assert node.op is not None
    entries: list[Entry] = [entry for entry in node.inputs if (id(entry[0]), entry[1]) in values]
    call = ExportCall(
        node,
        graph,
        [values[id(source), index] for source, index in entries],
        [network.shape(*entry) for entry in entries],
        [network.dtype(*entry) for entry in entries],
        [network.shape(node, i) for i in range(node.visible_outputs())],
        [network.dtype(node, i) for i in range(node.visible_outputs())],
        network.params,
    )
    missing = [entry[0].name for entry in node.inputs if entry not in entries and entry[0].name not in network.labels]
    if missing:
        raise refuse(call, f"reads {', '.join(missing)}, which its converter does not make")
    since = len(graph.nodes)
    for i, value in enumerate(convert(call)):
        name = graph.unique(output_name(node, i))
        values[id(node), i] = name if graph.rename(value, name, since) else value


def output_name(node: Node, index: int) -> str:
    """Return the name of an output as MXNet's exporter has it: the node's, with a number where there are several."""
    name = node.output_name(index)
    if name.endswith("_state_output"):
        return name.removesuffix("_state_output") + "1"
    if name.endswith("_statecell_output"):
        return name.removesuffix("_statecell_output") + "2"
    stem, _, number = name.rpartition("_output")
    return f"{stem}{number}" if stem and (not number or number.isdigit()) else name
