"""ImportCall, one ONNX node as its converter sees it, and `imports`, which declares converters.

@imports("Elu")
def _(call: ImportCall) -> Symbol:
    return call.make("LeakyReLU", call.symbol(0), act_type="elu", slope=call.attr("alpha"))

A converter reads attributes and inputs through the call alone. `convert` refuses a node that has more than its
converter has read, unless the converter says that the rest has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from opbox_protocol.errors import MXNetError

from .. import _schema
from ..symbol import Symbol
from ..symbol.compose import create
from .import_graph import Array, ImportGraph

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

__all__ = ["IMPORTERS", "Array", "ImportCall", "ImportGraph", "Importer", "convert", "imports"]


class ImportCall:
    """A node of an ONNX model, to be converted.

    Attributes:
        graph: what is known of the others.
        op_type: ONNX's operator.
        name: of the node, or of its first output that has one.
        outputs: the names of its outputs; "" for one that the model leaves out.
        count: the number of inputs, those left out at the end not counted.
    """

    def __init__(self, node: NodeProto, graph: ImportGraph) -> None:
        from onnx import defs

        self.graph = graph
        self.op_type = node.op_type
        self.name = node.name or next(filter(None, node.output))
        self.outputs = list(node.output)
        self.count = len(node.input)
        self._inputs: list[str] = list(node.input)
        self._defaults = {
            key: _value(attr.default_value)
            for key, attr in defs.get_schema(node.op_type, graph.opset, "").attributes.items()
            if attr.default_value.name
        }
        self._attrs = {attr.name: _value(attr) for attr in node.attribute}
        self._read: set[str] = set()
        self._read_inputs: set[int] = set()

    # -- attributes ---------------------------------------------------------------------------------------------------

    def attr(self, key: str, default: Any = None) -> Any:
        """Read an attribute, or what ONNX takes in its place in the model's opset; `default` if that is nothing."""
        self._read.add(key)
        return self._attrs.get(key, self._defaults.get(key, default))

    def without_effect(self, *keys: str, inputs: Sequence[int] = ()) -> None:
        """Say that the result does not depend on these attributes and inputs, so that they need not be read."""
        self._read.update(keys)
        self._read_inputs.update(inputs)

    def unread(self) -> str | None:
        """The first attribute or input that nothing has read; attributes that repeat ONNX's default do not count."""
        for key, value in self._attrs.items():
            if key not in self._read and not (key in self._defaults and value == self._defaults[key]):
                return f"attribute {key}: expected {self._defaults.get(key, 'none')}, got {value}"
        for i, name in enumerate(self._inputs):
            if name and i not in self._read_inputs:
                return f"input {i}: expected none, got {name}"
        return None

    # -- inputs -------------------------------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        """Return whether an optional input is there."""
        return i < self.count and bool(self._inputs[i])

    def input_name(self, i: int) -> str:
        """The name of an input in the model."""
        return self._inputs[i]

    def symbol(self, i: int) -> Symbol:
        """An input as a symbol; a constant becomes a parameter.

        Raises:
            MXNetError: its element type is one that opbox has no arrays of.
        """
        self._read_inputs.add(i)
        name = self._inputs[i]
        foreign = self.graph.foreign_type(name)
        if foreign is not None:
            raise self.refuse(f"expected an input {i} ({name}) of numbers that opbox has, got {foreign}")
        if name in self.graph.symbols:
            return self.graph.symbols[name]
        self.constant(i)
        return self.graph.parameter(name)

    def constant(self, i: int) -> Array:
        """The values of an input.

        Raises:
            MXNetError: they are computed from what is fed, or no numbers.
        """
        self._read_inputs.add(i)
        name = self._inputs[i]
        if name not in self.graph.constants:
            raise self.refuse(f"expected input {i} ({name}) to be a constant, got a value that is computed")
        values = self.graph.constants[name]
        if self.graph.foreign_type(name) is not None:
            raise self.refuse(f"expected input {i} ({name}) of numbers, got {self.graph.foreign_type(name)}")
        return values

    def is_constant(self, i: int) -> bool:
        """Return whether an input's values are known."""
        return self.has(i) and self._inputs[i] in self.graph.constants

    def scalar(self, i: int, default: Any = None) -> Any:
        """The value of an optional input of one element."""
        if not self.has(i):
            return default
        values = self.constant(i)
        if values.size != 1:
            raise self.refuse(f"expected input {i} ({self._inputs[i]}) of one element, got {values.shape}")
        return values.reshape(-1)[0].item()

    def ints(self, i: int, key: str) -> list[int] | None:
        """Numbers that are an attribute in old opsets and an input in new ones."""
        if self.has(i):
            return [int(value) for value in self.constant(i).reshape(-1)]
        value = self.attr(key)
        return None if value is None else [int(v) for v in (value if isinstance(value, list) else [value])]

    def shape(self, i: int) -> tuple[int | None, ...]:
        """The shape of an input.

        Raises:
            MXNetError: not even its rank is known.
        """
        name = self._inputs[i]
        if name in self.graph.constants:
            return tuple(self.graph.constants[name].shape)
        if not self.graph.knows_shape(name):
            raise self.refuse(f"expected an input {i} ({name}) whose rank follows from the model, got one of any rank")
        return self.graph.shapes[name]

    def known_shape(self, i: int) -> tuple[int, ...]:
        """The shape of an input, all of whose sizes the conversion must know.

        Raises:
            MXNetError: one is unknown.
        """
        return self.known(self.shape(i), f"input {i} ({self._inputs[i]})")

    def known(self, sizes: Sequence[int | None], subject: str) -> tuple[int, ...]:
        """These sizes, which the conversion must know.

        Raises:
            MXNetError: one is unknown.
        """
        if None in sizes:
            raise self.refuse(f"expected {subject} with sizes that follow from the model, got {tuple(sizes)}")
        return tuple(size for size in sizes if size is not None)

    def rank(self, i: int) -> int:
        """The number of dimensions of an input."""
        return len(self.shape(i))

    def axis(self, default: int | None = None, rank: int | None = None) -> int:
        """The attribute axis, counted from the front."""
        rank = self.rank(0) if rank is None else rank
        axis = self.attr("axis", default)
        if not -rank <= axis < rank:
            raise self.refuse(f"axis: expected {-rank} to {rank - 1}, got {axis}")
        return int(axis) % rank

    def dtype(self, i: int) -> np.dtype[Any] | None:
        """The element type of an input in the model; None where it is unknown. Truths are numbers in opbox."""
        return self.graph.dtype(self._inputs[i])

    # -- results ------------------------------------------------------------------------------------------------------

    def make(self, op: str, *symbols: Symbol, named: bool = True, **params: Any) -> Symbol:
        """Call an operator; the node's name is the call's, unless `named` says that this is but a step.

        Raises:
            MXNetError: the operator refuses its parameters.
        """
        name = self.name if named else None
        operator = _schema.get(op)
        try:
            return Symbol(create(operator, operator.name.lower().strip("_"), symbols, {}, params, name))
        except MXNetError as error:
            raise self.refuse(str(error)) from error

    def step(self, op: str, *symbols: Symbol, **params: Any) -> Symbol:
        """Call an operator on the way to the node's result."""
        return self.make(op, *symbols, named=False, **params)

    def parameter(self, suffix: str, values: Array) -> Symbol:
        """A parameter that the converter worked out."""
        return self.graph.variable(f"{self.name}_{suffix}", values)

    def widened(self, i: int, rank: int) -> Symbol:
        """An input with dimensions of size 1 in front of its own, `rank` in all."""
        data, sizes = self.symbol(i), self.shape(i) or (1,)
        if len(sizes) == rank:
            return data
        if sizes.count(None) <= 1:
            ones = [1] * (rank - len(sizes))
            return self.step("Reshape", data, shape=(*ones, *(-1 if size is None else size for size in sizes)))
        for _ in range(rank - len(sizes)):
            data = self.step("expand_dims", data, axis=0)
        return data

    def aligned(self, *inputs: int) -> list[Symbol]:
        """Inputs with as many dimensions each, as MXNet's broadcasting asks for."""
        rank = max(max(self.rank(i) for i in inputs), 1)
        return [self.widened(i, rank) for i in inputs]

    def refuse(self, reason: str) -> MXNetError:
        """The error of a node that opbox cannot express."""
        return MXNetError(f"import_model: {self.name} ({self.op_type}): {reason}")


def _value(attr: AttributeProto) -> Any:
    """The value of an attribute, with texts for bytes."""
    from onnx import helper

    value = helper.get_attribute_value(attr)
    if isinstance(value, bytes):
        return str(value.decode())
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [part.decode() if isinstance(part, bytes) else part for part in value]
    return value


Importer: TypeAlias = Callable[[ImportCall], Symbol | Sequence[Symbol]]
IMPORTERS: dict[str, Importer] = {}
"""Converters from ONNX by ONNX's operator."""


def imports(*names: str) -> Callable[[Importer], Importer]:
    """Declare the converter of these operators of ONNX."""

    def declare(function: Importer) -> Importer:
        for name in names:
            IMPORTERS[name] = function
        return function

    return declare


def convert(call: ImportCall) -> list[Symbol]:
    """The outputs of a node.

    Raises:
        MXNetError: its converter refuses it, or has not read all that the node has.
    """
    result = IMPORTERS[call.op_type](call)
    unread = call.unread()
    if unread is not None:
        raise call.refuse(f"{unread}, which opbox's converter does not read")
    symbols = list(result)
    lacking = [name for name in call.outputs[len(symbols) :] if name]
    if lacking:
        used = ", ".join(lacking)
        raise call.refuse(f"expected {len(symbols)} outputs in inference, got a model that names more: {used}")
    return symbols
