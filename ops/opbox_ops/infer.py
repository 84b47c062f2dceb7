"""Shape and type algebra with unknowns: what FInferShape and FInferType rules are written in.

A shape is a tuple of dimensions, or None when even the rank is unknown; a dimension of -1 is unknown, and 0 is a real,
empty dimension. (MXNet's Python face writes 0 for unknown; the client and the JSON reader translate.)
A type is a numpy dtype, or None when unknown. Rules run in both directions: they see `ins` and `outs` and `merge`
whatever they can tell into either; merging is idempotent, and a contradiction raises with both shapes.

    @op.infer_shape
    def _(p, ins, outs):
        shape = outs.merge(0, ins[0])     # forwards
        ins.merge(0, shape)               # backwards
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from opbox_protocol.errors import DTypeError, ShapeError
from opbox_protocol.mxnet import numpy_dtype
from opbox_protocol.shapes import Shape, known, show_shape, size_of, unify

__all__ = [
    "FLOATS",
    "DType",
    "Shape",
    "ShapeList",
    "TypeList",
    "all_same_float",
    "all_same_shape",
    "all_same_type",
    "broadcast_shapes",
    "canonical_axis",
    "known",
    "not_bool",
    "numeric_types",
    "show_shape",
    "size_of",
    "summary",
    "unify",
]

DType: TypeAlias = "np.dtype[Any] | None"
FLOATS = ("float16", "float32", "float64", "bfloat16")


def canonical_axis(axis: int, ndim: int, what: str = "axis") -> int:
    """`axis` counted from the front; ShapeError when it is outside an array of `ndim` dimensions."""
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{what}: expected between {-ndim} and {ndim - 1} for {ndim} dimensions, got {axis}")
    return axis % ndim if ndim else 0


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's broadcasting with unknowns: a dimension stays unknown unless the others settle it."""
    if any(shape is None for shape in shapes):
        return None
    present = [shape for shape in shapes if shape is not None]
    ndim = max((len(shape) for shape in present), default=0)
    result = []
    for axis in range(-ndim, 0):
        dims = {shape[axis] for shape in present if len(shape) >= -axis}
        real = {d for d in dims if d >= 0 and d != 1}
        if len(real) > 1:
            listed = " and ".join(show_shape(shape) for shape in present)
            raise ShapeError(f"expected shapes that broadcast together, got {listed}")
        if real:
            result.append(real.pop())
        else:
            result.append(-1 if any(d < 0 for d in dims) else 1)
    return tuple(result)


class ShapeList(list[Shape]):
    """The shapes of a node's inputs or outputs during inference."""

    def __init__(self, shapes: Iterable[Shape], side: str) -> None:
        super().__init__(shapes)
        self.side = side

    def merge(self, index: int, shape: Shape) -> Shape:
        """Unify `shape` into slot `index` and return the result; ShapeError when they contradict each other."""
        try:
            merged = unify(self[index], shape)
        except ValueError:
            message = f"expected {show_shape(shape)}, got {show_shape(self[index])}"
            raise ShapeError(message, side=self.side, index=index) from None
        self[index] = merged
        return merged

    def rank(self, index: int, *allowed: int) -> Shape:
        """The shape in slot `index`, its rank checked against `allowed` when it is known."""
        shape = self[index]
        if shape is not None and len(shape) not in allowed:
            ranks = " or ".join(str(n) for n in allowed)
            raise ShapeError(f"expected {ranks} dimensions, got {show_shape(shape)}", side=self.side, index=index)
        return shape


class TypeList(list[DType]):
    """The element types of a node's inputs or outputs during inference."""

    def __init__(self, dtypes: Iterable[DType], side: str) -> None:
        super().__init__(dtypes)
        self.side = side

    def merge(self, index: int, dtype: DType | str | type) -> DType:
        """Set slot `index` to `dtype` (None changes nothing); DTypeError when another type is there."""
        if dtype is None:
            return self[index]
        wanted = numpy_dtype(dtype)
        if self[index] is not None and self[index] != wanted:
            raise DTypeError(f"expected type {wanted}, got {self[index]}", side=self.side, index=index)
        self[index] = wanted
        return wanted

    def only(self, index: int, *allowed: str) -> DType:
        """The type in slot `index`, checked against `allowed` names when it is known."""
        dtype = self[index]
        if dtype is not None and dtype.name not in allowed:
            raise DTypeError(f"expected {' or '.join(allowed)}, got {dtype}", side=self.side, index=index)
        return dtype


ShapeRule: TypeAlias = "Callable[[Any, ShapeList, ShapeList], None]"
TypeRule: TypeAlias = "Callable[[Any, TypeList, TypeList], None]"


R = TypeVar("R", bound=Callable[..., None])


def summary(word: str) -> Callable[[R], R]:
    """Decorator: what a rule makes of the outputs, in a word for clients, which have no rules (`Op.json`).

    Args:
        word: "first": as the first input, "first if real": if that has a floating type; "broadcast": of all inputs;
            "given": by the parameter `shape` or `dtype` (float32 when that is None), "given or first".
    """

    def attach(rule: R) -> R:
        vars(rule)["summary"] = word
        return rule

    return attach


@summary("first")
def all_same_shape(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """NNVM's ElemwiseShape: every input and output has one shape."""
    _spread(ins, outs, None)


@summary("first")
def all_same_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    """NNVM's ElemwiseType: every input and output has one element type."""
    _spread(ins, outs, None)


@summary("first")
def all_same_float(p: Any, ins: TypeList, outs: TypeList) -> None:
    """Every input and output has one element type, a float."""
    for i in range(len(ins)):
        ins.only(i, *FLOATS)
    _spread(ins, outs, None)


@summary("first")
def numeric_types(p: Any, ins: TypeList, outs: TypeList) -> None:
    """One element type for everything, and not bool; DTypeError otherwise."""
    all_same_type(p, ins, outs)
    not_bool(ins)


def not_bool(ins: TypeList) -> None:
    """DTypeError when an input is bool."""
    for index, dtype in enumerate(ins):
        if dtype is not None and dtype.kind == "b":
            raise DTypeError("expected a number type, got bool: Cast it first", side=ins.side, index=index)


def _spread(ins: Any, outs: Any, value: Any) -> None:
    for slots in (ins, outs):
        for i in range(len(slots)):
            value = slots.merge(i, value)
    for slots in (ins, outs):
        for i in range(len(slots)):
            slots.merge(i, value)
