"""ModelSignature: what a model takes and gives, apart from running it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.datatypes import datatype_of, dtype_of
from opbox_protocol.errors import BadRequestError, ShapeError

from ..executor import Variables
from ..graph.ir import Graph
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..task import graph_budget
from .model_config import ModelConfig
from .model_files import ModelNetwork
from .model_plans import TensorForm

__all__ = ["ModelSignature", "ServedTensor"]

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output, as the metadata has it.

    Attributes:
        shape: -1 for a length that varies; None where the rank does.
        any_rank: whether tensors of other ranks than the shape's are taken too, if the network can run them.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    any_rank: bool = False

    def to_json(self) -> dict[str, Any]:
        """As the Open Inference Protocol has it."""
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": list((-1,) if self.shape is None else self.shape),
        }

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor's shape fits, as far as it is known here."""
        if self.shape is None or (self.any_rank and len(self.shape) != len(shape)):
            return True
        return len(self.shape) == len(shape) and all(
            length in (-1, got) for length, got in zip(self.shape, shape, strict=True)
        )


class ModelSignature:
    """The inputs and outputs of a model, with their types and shapes.

    Args:
        network: the graph and its parameters.
        config: what the model's file says.

    Attributes:
        inputs, outputs: what it takes and gives.
        labels: the arguments that losses compare with; only gradients need them.
        output_names: of all outputs, in the graph's order.
        default_outputs: those to answer where a request names none.
        variables: what is known of the shapes and types of the graph's variables.
        batch_axis: the axis of inputs and outputs that counts examples; None: there is none.

    Raises:
        BadRequestError: the parameters do not fit the graph, or the config does not.
        ShapeError, DTypeError: the graph contradicts itself.
    """

    def __init__(self, network: ModelNetwork, config: ModelConfig) -> None:
        graph, known = network.graph, network.graph.input_names
        stray = [name for name in network.params if name not in known]
        if stray:
            raise BadRequestError(f"parameters: {stray[0]!r} is none of the graph's: expected those that it names")
        missing = [name for name in graph.auxiliary_names if name not in network.params]
        if missing:
            raise BadRequestError(f"parameters: auxiliary state {missing[0]!r} is missing: save it with the arguments")
        free = [name for name in graph.argument_names if name not in network.params]
        unread = _labels(graph)
        self.labels = [name for name in free if name in unread]
        self.output_names = list(network.outputs) or graph.output_names
        self.batch_axis = config.batch_axis
        wrong = [name for name in config.outputs or () if name not in self.output_names]
        if wrong:
            raise BadRequestError(f"outputs: {wrong[0]!r}: expected one of {', '.join(self.output_names[:20])}")
        self.default_outputs = config.outputs or self.output_names
        self._describe(network, config, [name for name in free if name not in unread])

    def _describe(self, network: ModelNetwork, config: ModelConfig, names: Sequence[str]) -> None:
        """Infer types and shapes, as far as they are known."""
        unknown = [name for name in config.inputs if name not in names]
        if unknown:
            raise BadRequestError(f"inputs: {unknown[0]!r}: expected one of {', '.join(names) or 'none'}")
        shapes: dict[str, Any] = {name: array.shape for name, array in network.params.items()}
        types: dict[str, Any] = {name: array.dtype for name, array in network.params.items()}
        shapes |= {name: shape for name, shape in network.shapes.items() if name in names}
        types |= {name: dtype for name, dtype in network.types.items() if name in names}
        for name, stated in config.inputs.items():
            if stated.shape is not None:
                shapes[name] = tuple(stated.shape)
            if stated.datatype is not None:
                types[name] = dtype_of(stated.datatype)
        graph = network.graph
        self.variables: Variables = {name: (shapes.get(name), types.get(name)) for name in graph.input_names}
        with graph_budget():
            inferred = infer_shape(graph, shapes, partial=True)
            dtypes = infer_type(graph, types, partial=True)
        shape_of = dict(zip(graph.argument_names, inferred.arg_shapes, strict=True))
        type_of = dict(zip(graph.argument_names, dtypes.arg_types, strict=True))
        ranks = {name: (-1, -1) for name in names if shape_of[name] is None}
        columns = _shapes_as_rows(graph, shapes, ranks)
        self.inputs = [
            _served(name, columns.get(name, shape_of[name]), type_of[name], any_rank=name in columns) for name in names
        ]
        outputs = zip(self.output_names, inferred.out_shapes, dtypes.out_types, strict=True)
        self.outputs = [_served(*output) for output in outputs]
        self._entries = inferred.entries, dtypes.entries

    def value(self, name: str, entry: int) -> ServedTensor:
        """An output of any of the graph's nodes, by its entry's number."""
        shapes, types = self._entries
        return _served(name, shapes[entry], types[entry])

    def check(self, tensors: Mapping[str, Array]) -> None:
        """Raise BadRequestError where a request's inputs are not the model's, by name, type and shape."""
        for served in self.inputs:
            tensor = tensors.get(served.name)
            if tensor is None:
                names = ", ".join(one.name for one in self.inputs)
                raise BadRequestError(f"input {served.name!r} is missing: expected tensors named {names}")
            datatype = datatype_of(tensor.dtype)
            if datatype != served.datatype:
                raise BadRequestError(f"input {served.name!r}: expected {served.datatype}, got {datatype}")
            if not served.takes(tensor.shape):
                raise BadRequestError(
                    f"input {served.name!r}: expected shape {list(served.shape or ())}, got {list(tensor.shape)}"
                )
        extra = [name for name in tensors if name not in {served.name for served in self.inputs}]
        if extra:
            names = ", ".join(served.name for served in self.inputs) or "none"
            raise BadRequestError(f"input {extra[0]!r} is none of the model's: expected {names}")

    def of_raw(self, data: memoryview) -> dict[str, Array]:
        """The only input, of a request whose body is its bytes and nothing else.

        Raises:
            BadRequestError: the model has several inputs, or the bytes do not say the input's shape.
        """
        if len(self.inputs) != 1:
            names = ", ".join(one.name for one in self.inputs) or "none"
            raise BadRequestError(
                f"body: expected a model with one input for bytes without a header, got {len(self.inputs)} ({names}): "
                "describe them in a JSON header"
            )
        (served,) = self.inputs
        dtype, shape = dtype_of(served.datatype), served.shape
        if shape is None or shape.count(-1) > 1:
            raise BadRequestError(
                f"input {served.name!r}: expected a shape with one varying length for bytes without a header, got "
                f"{list(shape or (-1,))}: state the shape in a JSON header, or in the model's model.toml"
            )
        one = math.prod(length for length in shape if length >= 0) * dtype.itemsize
        if (len(data) % one if -1 in shape else len(data) != one) or not one:
            multiple = "a multiple of " if -1 in shape else ""
            raise BadRequestError(
                f"input {served.name!r}: expected {multiple}{one} bytes by its shape {list(shape)}, got {len(data)}"
            )
        return {served.name: np.frombuffer(data, dtype).reshape(shape)}

    def examples(self, tensors: Mapping[str, Array], *, alike: bool) -> int:
        """The length of the inputs' batch axis.

        Args:
            tensors: checked ones.
            alike: whether all inputs are to have the same, as requests run together.

        Raises:
            BadRequestError: they have not.
        """
        if not self.inputs or self.batch_axis is None:
            return 1
        axis, first = self.batch_axis, self.inputs[0].name
        if not alike:
            shape = tensors[first].shape
            return int(shape[axis]) if len(shape) > axis else 1
        for one in self.inputs:
            shape = tensors[one.name].shape
            if len(shape) <= axis:
                raise BadRequestError(f"input {one.name!r}: expected more than {axis} dimensions, got {len(shape)}")
            if shape[axis] != tensors[first].shape[axis]:
                raise BadRequestError(
                    f"input {one.name!r}: expected {tensors[first].shape[axis]} examples, as {first!r} has, got "
                    f"{shape[axis]}"
                )
        return int(tensors[first].shape[axis])

    def shapes_of_one(self, tensors: Mapping[str, Array]) -> list[tuple[int, ...]]:
        """The inputs' shapes without the batch axis."""
        axis = self.batch_axis or 0
        return [tensors[one.name].shape[:axis] + tensors[one.name].shape[axis + 1 :] for one in self.inputs]

    def forms(self, tensors: Mapping[str, Array]) -> dict[str, TensorForm]:
        """Shape and type of a request's inputs, in the model's order."""
        return {one.name: (tensors[one.name].shape, tensors[one.name].dtype) for one in self.inputs}


def _served(name: str, shape: Any, dtype: Any, *, any_rank: bool = False) -> ServedTensor:
    datatype = datatype_of(np.dtype(dtype or np.float32))
    return ServedTensor(name, datatype, None if shape is None else tuple(shape), any_rank)


def _shapes_as_rows(graph: Graph, known: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs whose rank is unknown, if they are rows: FullyConnected's weights tell the number of columns.

    Args:
        graph: the network.
        known: shapes by argument and auxiliary state.
        rows: the inputs' shapes as rows, with -1 for both lengths.

    Returns:
        Those whose columns follow; none where the network takes no rows.
    """
    if not rows:
        return {}
    try:
        with graph_budget():
            inferred = infer_shape(graph, {**known, **rows}, partial=True)
    except ShapeError:
        return {}
    shapes = zip(graph.argument_names, inferred.arg_shapes, strict=True)
    return {name: shape for name, shape in shapes if name in rows and shape is not None and shape[1] >= 0}


def _labels(graph: Graph) -> set[str]:
    """The variables that operators read as labels alone: no value of theirs counts when a network is only run."""
    labels, others = set[str](), set[str]()
    for node in graph.nodes:
        if node.op is None:
            continue
        for name, entry in zip(node.op.input_names(node.params), node.inputs, strict=False):
            if entry.node.op is None:
                (labels if name == "label" else others).add(entry.node.name)
    return labels - others
