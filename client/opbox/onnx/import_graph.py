"""ImportGraph: the values, shapes and element types that are known while an ONNX model's nodes are converted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.mxnet import TYPES

from ..inference import infer_shape
from ..symbol import Symbol, Variable

__all__ = ["Array", "ImportGraph", "type_name"]

Array: TypeAlias = np.ndarray[Any, Any]


def type_name(number: int) -> str:
    """ONNX's name of an element type: "FLOAT"; what is no array has the number 0.

    Example:
        >>> type_name(8)
        'STRING'
    """
    from onnx import TensorProto

    return str(TensorProto.DataType.Name(number)) if number else "no array"


@dataclass
class ImportGraph:
    """State of an import.

    Attributes:
        opset: of the model.
        symbols: the values that are computed or fed.
        constants: the values that are known.
        shapes: the shapes that ONNX infers; None where a dimension is unknown.
        types: ONNX's numbers of the values' element types, as far as ONNX infers them.
        params: the constants that the symbols read.
        variables: what reads them.
    """

    opset: int
    symbols: dict[str, Symbol] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    params: dict[str, Array] = field(default_factory=dict)
    variables: dict[str, Symbol] = field(default_factory=dict)

    def variable(self, name: str, values: Array) -> Symbol:
        """A constant as a variable, which is a parameter of that name."""
        known = self.params.get(name)
        if known is not None and (known.shape != values.shape or not np.array_equal(known, values)):
            name = f"{name}_{len(self.params)}"
        if name not in self.variables:
            self.params[name] = values
            self.variables[name] = Variable(name, shape=values.shape)
        return self.variables[name]

    def parameter(self, name: str) -> Symbol:
        """A constant of the model as a variable: truths are numbers in MXNet, and every array has a dimension."""
        values = np.atleast_1d(self.constants[name])
        return self.variable(name, values.astype(np.float32) if values.dtype == np.bool_ else values)

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The element type of a value in the model; None where it is unknown, or one that opbox has not."""
        from onnx import helper

        if name in self.constants:
            dtype = self.constants[name].dtype
        elif self.types.get(name):
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self.types[name]))
        else:
            return None
        return dtype if dtype in TYPES else None

    def foreign_type(self, name: str) -> str | None:
        """ONNX's name of a value's element type if opbox has no arrays of that type."""
        from onnx import helper

        if name in self.constants:
            dtype = self.constants[name].dtype
            return None if dtype in TYPES else type_name(int(helper.np_dtype_to_tensor_dtype(dtype)))
        if name not in self.types or self.dtype(name) is not None:
            return None
        return type_name(self.types[name])

    def knows_shape(self, name: str) -> bool:
        """Return whether a value's shape is in `shapes`, where the engine's goes if ONNX infers none."""
        if name not in self.shapes and name in self.symbols:
            symbol = self.symbols[name]
            known = {n: self.params[n].shape if n in self.params else self.shapes.get(n) for n in symbol.list_inputs()}
            if all(shape is not None and None not in shape for shape in known.values()):
                _, outputs, _ = infer_shape(symbol, True, (), known)
                if outputs and outputs[0] and all(outputs[0]):
                    self.shapes[name] = outputs[0]
        return name in self.shapes
