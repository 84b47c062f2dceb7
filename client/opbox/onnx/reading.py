"""`mx.onnx.import_model` and `get_model_metadata`: ONNX files as symbols and parameters."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.errors import MXNetError

from .. import ndarray as nd
from ..symbol import Group, Symbol, Variable
from . import importers
from .importing import IMPORTERS, ImportCall, ImportGraph
from .package import NEWEST, OLDEST, require

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["get_model_metadata", "import_model"]

assert importers.__all__  # declares the converters
CONSTANT = ("Constant", "ConstantOfShape", "Range")
"""Operators that are worked out here, and have no converter."""
FOLDED = 2**20
"""Elements of the largest constant that is worked out here."""


def import_model(model_file: str | Path) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:
    """Read an ONNX model (opset 7 to 22) as a network.

    Args:
        model_file: its path.

    Returns:
        the symbol, its parameters and its auxiliary states, by name.

    Raises:
        MXNetError: the file is no ONNX model, of an opset that is not known, or has operators without a converter.

    Example:
        >>> net, arg_params, aux_params = mx.onnx.import_model("net.onnx")
    """
    model = _loaded(model_file, "import_model")
    graph = _graph(model)
    nodes = _in_order(model)
    for node in nodes:
        if not _folded(graph, node):
            _convert(graph, node)
    outputs = []
    for value in model.graph.output:
        if value.name not in graph.symbols:
            if value.name not in graph.constants:
                raise MXNetError(f"import_model: output {value.name}: expected a node that makes it, got none")
            graph.symbols[value.name] = graph.variable(value.name, np.atleast_1d(graph.constants[value.name]))
        outputs.append(graph.symbols[value.name])
    symbol = outputs[0] if len(outputs) == 1 else Group(outputs)
    params = graph.params
    return symbol, _arrays(params, symbol.list_arguments()), _arrays(params, symbol.list_auxiliary_states())


def get_model_metadata(model_file: str | Path) -> dict[str, list[tuple[Any, ...]]]:
    """The names and shapes of what a model takes and gives; 0 is a dimension that varies.

    Args:
        model_file: its path.

    Returns:
        `input_tensor_data`, a list of (name, shape, ONNX's number of the type), and `output_tensor_data`, of (name,
        shape).

    Raises:
        MXNetError: the file is no ONNX model.

    Example:
        >>> mx.onnx.get_model_metadata("mlp.onnx")["input_tensor_data"]
        [('data', (1, 784), 1)]
    """
    model = _loaded(model_file, "get_model_metadata")
    known = {tensor.name for tensor in model.graph.initializer}

    def shape(value: Any) -> tuple[int, ...]:
        return tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)

    inputs = [(v.name, shape(v), int(v.type.tensor_type.elem_type)) for v in model.graph.input if v.name not in known]
    return {"input_tensor_data": inputs, "output_tensor_data": [(v.name, shape(v)) for v in model.graph.output]}


def _loaded(path: Any, who: str) -> ModelProto:
    """The model in a file, checked."""
    require()
    import onnx

    decode_error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError  # it has no types

    if not isinstance(path, str | Path):
        raise TypeError(f"{who}: model_file: expected a path, got {type(path).__name__}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"{who}: model_file: expected the path of an ONNX model, got {str(path)!r}: no file")
    try:
        model = onnx.load_model(path)
        onnx.checker.check_model(model)
    except decode_error:
        raise MXNetError(f"{who}: {path}: expected an ONNX model, got other bytes") from None
    except (onnx.checker.ValidationError, ValueError, OSError) as error:
        raise MXNetError(f"{who}: {path}: expected an ONNX model, got one that onnx refuses: {error}") from error
    return model


def _opset(model: ModelProto) -> int:
    versions = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    opset = int(versions.get("ai.onnx", 0))
    if not OLDEST <= opset <= NEWEST:
        raise MXNetError(
            f"import_model: opset: expected {OLDEST} to {NEWEST}, got {opset}: convert the model with "
            "onnx.version_converter"
        )
    return opset


def _in_order(model: ModelProto) -> list[NodeProto]:
    """The nodes, all of which have converters.

    Raises:
        MXNetError: some have none.
    """
    missing: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in (
            *IMPORTERS,
            "Constant",
            "ConstantOfShape",
            "Range",
        ):
            missing.setdefault(node.op_type, []).append(node.name or node.output[0])
    if missing:
        listed = "; ".join(f"{op} ({', '.join(names)})" for op, names in sorted(missing.items()))
        raise MXNetError(f"import_model: expected operators of ONNX that have a converter, got {listed}")
    return list(model.graph.node)


def _graph(model: ModelProto) -> ImportGraph:
    """Read a model's constants, inputs and shapes, before the first node is converted."""
    from onnx import numpy_helper, shape_inference

    graph = ImportGraph(_opset(model))
    for tensor in model.graph.initializer:
        graph.constants[tensor.name] = np.asarray(numpy_helper.to_array(tensor))
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except shape_inference.InferenceError:
        inferred = model
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            sizes = (int(dim.dim_value) if dim.HasField("dim_value") else None for dim in kind.shape.dim)
            graph.shapes[value.name] = tuple(sizes)
    for value in model.graph.input:
        if value.name not in graph.constants:
            graph.symbols[value.name] = Variable(value.name)
    return graph


def _folded(graph: ImportGraph, node: NodeProto) -> bool:
    """Work out a node whose inputs are known; False when they are not, or the result is large."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.input if name]
    if node.op_type == "Shape" and graph.knows_shape(names[0]) and None not in graph.shapes[names[0]]:
        whole = np.array(graph.shapes[names[0]], np.int64)
        bounds = {attr.name: attr.i for attr in node.attribute}
        graph.constants[node.output[0]] = whole[bounds.get("start", 0) : bounds.get("end", len(whole))]
        return True
    if any(name not in graph.constants for name in names):
        return False
    if any(graph.constants[name].size > FOLDED for name in names) and node.op_type not in ("Cast", "Identity"):
        return False
    feeds = {name: graph.constants[name] for name in names}
    results: Any = ReferenceEvaluator(node, opsets={"": graph.opset}).run(None, feeds)
    for name, value in zip(node.output, results, strict=True):
        graph.constants[name] = np.asarray(value)
    return True


def _convert(graph: ImportGraph, node: NodeProto) -> None:
    from onnx import helper

    attrs = {attr.name: helper.get_attribute_value(attr) for attr in node.attribute}
    texts = {key: value.decode() if isinstance(value, bytes) else value for key, value in attrs.items()}
    call = ImportCall(node, graph, texts)
    if node.op_type not in IMPORTERS:
        raise call.refuse("expected constant inputs, got computed ones")
    result = IMPORTERS[node.op_type](call)
    symbols: list[Symbol] = list(result)
    for name, symbol in zip(node.output, symbols, strict=False):
        if name:
            graph.symbols[name] = symbol
    lacking = [name for name in list(node.output)[len(symbols) :] if name]
    if lacking:
        used = ", ".join(lacking)
        raise call.refuse(f"expected {len(symbols)} outputs in inference, got a model that names more: {used}")


def _arrays(values: dict[str, np.ndarray[Any, Any]], names: list[str]) -> dict[str, Any]:
    return {name: nd.array(values[name], dtype=values[name].dtype) for name in names if name in values}
