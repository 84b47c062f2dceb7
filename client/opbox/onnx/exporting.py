"""ExportCall, one operator call as its converter sees it, and `exports`, which declares converters.

@exports("relu")
def _(call: ExportCall) -> str:
    return call.emit("Relu", call.inputs[0])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import attribute_value

from ..symbol.node import Node
from .builder import OnnxGraph
from .package import tensor_type

__all__ = ["EXPORTERS", "Dims", "ExportCall", "Exporter", "convert", "exports", "refuse"]

Dims: TypeAlias = tuple[int | None, ...]
"""A shape; None is a dimension that may vary from call to call."""


@dataclass(frozen=True)
class ExportCall:
    """A call of an operator, to be converted.

    Attributes:
        node: the call in the symbol.
        graph: where its ONNX nodes go.
        inputs: the names of its inputs' values.
        shapes, dtypes: the inputs' shapes and element types.
        out_shapes, out_dtypes: the visible outputs'.
        params: the network's parameters, by name.
        read: the parameters of the call that were read.
    """

    node: Node
    graph: OnnxGraph
    inputs: Sequence[str]
    shapes: Sequence[Dims]
    dtypes: Sequence[np.dtype[Any]]
    out_shapes: Sequence[Dims]
    out_dtypes: Sequence[np.dtype[Any]]
    params: Mapping[str, np.ndarray[Any, Any]]
    read: set[str] = field(default_factory=set)

    @property
    def rank(self) -> int:
        """The number of dimensions of the first input."""
        return len(self.shapes[0])

    def attr(self, key: str) -> Any:
        """A parameter of the call, or its default: a number, a boolean, a tuple, a string or None."""
        self.read.add(key)
        return attribute_value(self.node.attrs[key]) if key in self.node.attrs else self._default(key)

    def _default(self, key: str) -> Any:
        default = self.node.op.params.get(key, {}).get("default") if self.node.op is not None else None
        return tuple(default) if isinstance(default, list) else default

    def unread(self) -> str | None:
        """The first parameter that nothing has read, unless it is MXNet's default or has no effect."""
        assert self.node.op is not None
        ignored = self.read | WITHOUT_EFFECT[self.node.op.name]
        for key, text in self.node.attrs.items():
            if key in self.node.op.params and key not in ignored and attribute_value(text) != self._default(key):
                return key
        return None

    def spatial(self, key: str, default: int) -> list[int]:
        """A parameter with one number for each of the kernel's dimensions."""
        value = self.attr(key)
        value = value if isinstance(value, tuple) else (value,) if value else ()
        return [int(v) for v in value] or [default] * (self.rank - 2)

    def axis(self, key: str = "axis", rank: int | None = None) -> int:
        """An axis, counted from the front."""
        return int(self.attr(key)) % max(rank or self.rank, 1)

    def size(self, i: int, axis: int) -> int:
        """A dimension of an input that the conversion must know.

        Raises:
            MXNetError: it may vary from call to call.
        """
        size = self.shapes[i][axis]
        if size is None:
            raise refuse(self, f"needs the size of axis {axis} of input {i}, which is dynamic: give it in in_shapes")
        return size

    def static(self, dims: Dims) -> list[int]:
        """A shape that the conversion must know whole.

        Raises:
            MXNetError: one of the dimensions may vary.
        """
        if None in dims:
            raise refuse(self, f"needs the whole shape {dims}, of which a part is dynamic: export with dynamic=False")
        return [int(d) for d in dims if d is not None]

    def values(self, i: int) -> np.ndarray[Any, Any]:
        """The values of an input that is a parameter.

        Raises:
            MXNetError: it is computed or fed.
        """
        node = self.node.inputs[i][0]
        if node.op is not None or node.name not in self.params:
            raise refuse(self, f"needs the values of {node.name!r} among params, got none")
        return self.params[node.name]

    # -- building ---------------------------------------------------------------------------------------------

    def emit_all(self, op_type: str, *inputs: str, outputs: int, **attrs: Any) -> list[str]:
        """Add an ONNX node of several outputs."""
        return self.graph.node(op_type, inputs, outputs, self.node.name, attrs)

    def emit(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Add an ONNX node, and return the name of its first output."""
        return self.emit_all(op_type, *inputs, outputs=1, **attrs)[0]

    def ints(self, values: Any) -> str:
        """Numbers as ONNX takes shapes and axes: int64."""
        return self.graph.constant(values, np.int64, self.node.name)

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Numbers, of the first output's type unless `dtype` says another."""
        return self.graph.constant(values, self.out_dtypes[0] if dtype is None else dtype, self.node.name)

    def cast(self, value: str, dtype: Any) -> str:
        """The value in another element type."""
        return self.emit("Cast", value, to=tensor_type(dtype))

    def as_type(self, value: str, dtype: Any, wanted: Any) -> str:
        """The value, which is of type `dtype`, in the wanted one."""
        return value if np.dtype(dtype) == np.dtype(wanted) else self.cast(value, wanted)

    def reshape(self, value: str, before: Dims, after: Dims) -> str:
        """The value in another shape, whose last dynamic dimension follows from the others, which stay in place."""
        if before == after and None not in after:
            return value
        target = [-1 if size is None else size for size in after]
        for axis in [axis for axis, size in enumerate(after) if size is None][:-1]:
            if axis >= len(before) or before[axis] is not None:
                raise refuse(
                    self, f"reshapes {before} to {after}, with more than one dynamic dimension: fix one of them"
                )
            target[axis] = 0
        return self.emit("Reshape", value, self.ints(target))

    def reshape_as(self, value: str, i: int) -> str:
        """The value in the shape of an input."""
        dims = self.shapes[i]
        if dims.count(None) > 1:
            return self.emit("Reshape", value, self.emit("Shape", self.inputs[i]))
        return self.emit("Reshape", value, self.ints([-1 if size is None else size for size in dims]))

    def moved(self, value: str, axis: int, to: int, rank: int) -> str:
        """The value with an axis at another place."""
        if axis == to:
            return value
        order = [a for a in range(rank) if a != axis]
        order.insert(to, axis)
        return self.emit("Transpose", value, perm=order)


Exporter: TypeAlias = Callable[[ExportCall], str | list[str]]
EXPORTERS: dict[str, Exporter] = {}
"""Converters to ONNX by MXNet's operator."""
UNSEEN = (
    "cudnn_off", "cudnn_tune", "workspace", "ctx", "forward_stype", "sparse_grad", "min_calib_range", "max_calib_range",
    "num_args", "is_int", "no_bias", "dtype", "out_dtype",
)  # fmt: skip
"""Parameters of any operator that say how it is computed, or what the inputs and the types of the outputs say too."""
WITHOUT_EFFECT: dict[str, frozenset[str]] = {}
"""By operator the parameters that its converter need not read."""


def exports(*names: str, without_effect: Sequence[str] = ()) -> Callable[[Exporter], Exporter]:
    """Declare the converter of these operators.

    Args:
        names: the operators.
        without_effect: their parameters that change nothing in inference, or nothing but the shapes of the outputs, or
            nothing unless the converter reads them. Others that a call gives and its converter does not read are an
            error.
    """

    def declare(function: Exporter) -> Exporter:
        for name in names:
            EXPORTERS[name] = function
            WITHOUT_EFFECT[name] = frozenset((*UNSEEN, *without_effect))
        return function

    return declare


def convert(call: ExportCall) -> list[str]:
    """Add what a call becomes to the graph.

    Returns:
        the names of its outputs' values.

    Raises:
        MXNetError: ONNX cannot express the call, or its converter has not read all its parameters.
    """
    assert call.node.op is not None
    result = EXPORTERS[call.node.op.name](call)
    unread = call.unread()
    if unread is not None:
        raise refuse(
            call, f"{unread}: expected it not to be set, got {call.attr(unread)}: its converter does not read it"
        )
    return [result] if isinstance(result, str) else result


def refuse(call: ExportCall, reason: str) -> MXNetError:
    """The error of a call that ONNX cannot express."""
    name = call.node.op.name if call.node.op is not None else "variable"
    return MXNetError(f"export_model: {call.node.name} ({name}): {reason}")
