"""`mx.onnx.import_model` and `get_model_metadata`: ONNX files as symbols and parameters."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.errors import DamagedFileError, MXNetError

from .. import _schema
from .. import ndarray as nd
from ..symbol import Group, Symbol, Variable
from ..symbol.compose import create
from . import importers
from .folding import CONSTANT, folded
from .import_graph import ImportGraph
from .importing import IMPORTERS, ImportCall, convert
from .package import NEWEST, OLDEST, require

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["get_model_metadata", "import_model"]

assert importers.__all__  # declares the converters


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
    try:
        return _imported(model)
    except MXNetError:
        raise
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        # onnx's checker passes values that do not fit each other, as of a damaged file.
        raise DamagedFileError(
            f"import_model: {model_file}: expected values that fit each other, got others: the file may be damaged "
            f"({type(error).__name__}: {error})"
        ) from error


def _imported(model: ModelProto) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:
    """The network of a model that onnx's checker has passed."""
    graph = _graph(model)
    nodes = _in_order(model)
    for node in nodes:
        if folded(graph, node):
            continue
        if node.op_type not in IMPORTERS:
            raise MXNetError(
                f"import_model: {node.name or node.output[0]} ({node.op_type}): expected constant inputs, "
                "got computed ones"
            )
        call = ImportCall(node, graph)
        graph.symbols.update({name: symbol for name, symbol in zip(node.output, convert(call), strict=False) if name})
    outputs = []
    for value in model.graph.output:
        if value.name not in graph.symbols:
            if value.name not in graph.constants:
                raise MXNetError(f"import_model: output {value.name}: expected a node that makes it, got none")
            if graph.foreign_type(value.name) is not None:
                foreign = graph.foreign_type(value.name)
                raise MXNetError(f"import_model: output {value.name}: expected numbers that opbox has, got {foreign}")
            graph.symbols[value.name] = graph.parameter(value.name)
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
        _check(model)
    except decode_error:
        raise MXNetError(f"{who}: {path}: expected an ONNX model, got other bytes") from None
    except (onnx.checker.ValidationError, ValueError, OSError) as error:
        raise MXNetError(f"{who}: {path}: expected an ONNX model, got one that onnx refuses: {error}") from error
    return model


def _check(model: ModelProto) -> None:
    """Have onnx check a model. Its checker wants a shape of each input and output, which the format does not."""
    from onnx import checker

    values = (*model.graph.input, *model.graph.output)
    tensors = [value.type.tensor_type for value in values if value.type.HasField("tensor_type")]
    shapeless = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for tensor in shapeless:
        tensor.shape.SetInParent()
    try:
        checker.check_model(model)
    finally:
        for tensor in shapeless:
            tensor.ClearField("shape")


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
        if node.domain not in ("", "ai.onnx") or node.op_type not in (*IMPORTERS, *CONSTANT):
            missing.setdefault(node.op_type, []).append(node.name or node.output[0])
    if missing:
        listed = "; ".join(f"{op} ({', '.join(names)})" for op, names in sorted(missing.items()))
        raise MXNetError(f"import_model: expected operators of ONNX that have a converter, got {listed}")
    return list(model.graph.node)


def _graph(model: ModelProto) -> ImportGraph:
    """Read a model's constants, inputs and shapes, before the first node is converted."""
    from onnx import numpy_helper, shape_inference

    graph = ImportGraph(_opset(model))
    if model.graph.sparse_initializer:
        names = ", ".join(sparse.values.name for sparse in model.graph.sparse_initializer)
        raise MXNetError(f"import_model: {names}: expected dense initializers, got sparse ones")
    for tensor in model.graph.initializer:
        graph.constants[tensor.name] = np.asarray(numpy_helper.to_array(tensor))
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except shape_inference.InferenceError:
        inferred = model
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        if kind.elem_type or value.type.WhichOneof("value") not in (None, "tensor_type"):
            graph.types[value.name] = kind.elem_type  # 0 for sequences and maps
        if kind.HasField("shape"):
            sizes = (int(dim.dim_value) if dim.HasField("dim_value") else None for dim in kind.shape.dim)
            graph.shapes[value.name] = tuple(sizes)
    for value in model.graph.input:
        if value.name not in graph.constants:
            graph.symbols[value.name] = _fed(graph, value.name)
    return graph


def _fed(graph: ImportGraph, name: str) -> Symbol:
    """An input; truths become numbers, which logical operators take."""
    fed = Variable(name)
    if graph.dtype(name) != np.bool_:
        return fed
    return Symbol(create(_schema.get("Cast"), "cast", [fed], {}, {"dtype": "float32"}, f"{name}_truth"))


def _arrays(values: dict[str, np.ndarray[Any, Any]], names: list[str]) -> dict[str, Any]:
    return {name: nd.array(values[name], dtype=values[name].dtype) for name in names if name in values}
