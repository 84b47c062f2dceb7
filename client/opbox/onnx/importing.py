"""ImportCall, one ONNX node as its converter sees it, and `imports`, which declares converters.

@imports("Relu")
def _(call: ImportCall) -> Symbol:
    return call.make("relu", call.symbol(0))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from opbox_protocol.errors import MXNetError

from .. import _schema
from ..inference import infer_shape
from ..symbol import Symbol, Variable
from ..symbol.compose import create

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["IMPORTERS", "Array", "ImportCall", "ImportGraph", "Importer", "imports"]

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass
class ImportGraph:
    """State of an import: the values and names known while a model's nodes are converted.

    Attributes:
        opset: of the model.
        symbols: the values that are computed or fed.
        constants: the values that are known.
        shapes: the shapes that ONNX infers; None where a dimension is unknown.
        params: the constants that the symbols read.
        variables: what reads them.
    """

    opset: int
    symbols: dict[str, Symbol] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
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


@dataclass(frozen=True)
class ImportCall:
    """One node.

    Attributes:
        node: as it stands in the model.
        graph: what is known of the others.
        attrs: its attributes.
    """

    node: NodeProto
    graph: ImportGraph
    attrs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.node.name or self.node.output[0]

    @property
    def count(self) -> int:
        """The number of inputs, those left out at the end not counted."""
        return len(self.node.input)

    def has(self, i: int) -> bool:
        """Return whether an optional input is there."""
        return i < len(self.node.input) and bool(self.node.input[i])

    def attr(self, key: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attrs.get(key, default)

    def symbol(self, i: int) -> Symbol:
        """An input as a symbol; a constant becomes a parameter."""
        name = self.node.input[i]
        if name in self.graph.symbols:
            return self.graph.symbols[name]
        values = self.constant(i)
        # MXNet has no arrays without dimensions.
        return self.graph.variable(name, values.reshape(1) if values.ndim == 0 else values)

    def constant(self, i: int) -> Array:
        """The values of an input.

        Raises:
            MXNetError: they are computed from what is fed.
        """
        name = self.node.input[i]
        if name not in self.graph.constants:
            raise self.refuse(f"expected input {i} ({name}) to be a constant, got a value that is computed")
        return self.graph.constants[name]

    def is_constant(self, i: int) -> bool:
        """Return whether an input's values are known."""
        return self.has(i) and self.node.input[i] in self.graph.constants

    def scalar(self, i: int, default: Any = None) -> Any:
        """The value of an optional input of one element."""
        return self.constant(i).reshape(-1)[0].item() if self.has(i) else default

    def ints(self, i: int, key: str, default: Any = None) -> list[int] | None:
        """Numbers that are an attribute in old opsets and an input in new ones."""
        if self.has(i):
            return [int(value) for value in self.constant(i).reshape(-1)]
        value = self.attr(key, default)
        return None if value is None else [int(v) for v in (value if isinstance(value, list | tuple) else [value])]

    def shape(self, i: int) -> tuple[int | None, ...]:
        """The shape of an input.

        Raises:
            MXNetError: not even its rank is known.
        """
        name = self.node.input[i]
        if name in self.graph.constants:
            return tuple(self.graph.constants[name].shape)
        if not self.graph.knows_shape(name):
            raise self.refuse(f"expected an input {i} ({name}) whose rank follows from the model, got one of any rank")
        return self.graph.shapes[name]

    def rank(self, i: int) -> int:
        """The number of dimensions of an input."""
        return len(self.shape(i))

    def make(self, op: str, *symbols: Symbol, named: bool = True, **params: Any) -> Symbol:
        """Call an operator; the node's name is the call's, unless `named` says that this is but a step."""
        name = self.name if named else None
        operator = _schema.get(op)
        return Symbol(create(operator, operator.name.lower().strip("_"), symbols, {}, params, name))

    def step(self, op: str, *symbols: Symbol, **params: Any) -> Symbol:
        """Call an operator on the way to the node's result."""
        return self.make(op, *symbols, named=False, **params)

    def parameter(self, suffix: str, values: Array) -> Symbol:
        """A parameter that the converter worked out."""
        return self.graph.variable(f"{self.name}_{suffix}", values)

    def refuse(self, reason: str) -> MXNetError:
        """The error of a node that opbox cannot express."""
        return MXNetError(f"import_model: {self.name} ({self.node.op_type}): {reason}")


Importer: TypeAlias = Callable[[ImportCall], Symbol | Sequence[Symbol]]
IMPORTERS: dict[str, Importer] = {}
"""The converters by ONNX's operator."""


def imports(*names: str) -> Callable[[Importer], Importer]:
    """Declare the converter of these operators of ONNX."""

    def declare(function: Importer) -> Importer:
        for name in names:
            IMPORTERS[name] = function
        return function

    return declare
