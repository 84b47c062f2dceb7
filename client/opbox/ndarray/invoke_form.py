"""The repeated part of an operator's calls: its name and parameters on the wire, and the rule for its results.

Shapes and types of results that follow from the call alone need not be asked of the engine. The catalogue says for
which operators they do; of all others the engine tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.commands import Invoke
from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import NP_SHAPE, attribute_value, numpy_dtype

from .._schema import Operator, get
from .._schema.operator import when_learnt
from .handle import Handle

__all__ = ["InvokeForm", "form_of", "plain_form"]

Shape = tuple[int, ...] | None
DType = np.dtype[Any] | None
MAX_FORMS = 4096


class InvokeForm:
    """An operator with its parameters.

    Args:
        op: the operator.
        attrs: its parameters, as strings; nobody changes them afterwards.

    Attributes:
        op, attrs: as given.
        outputs: how many there are; -1 where the catalogue cannot tell.
        checked: shapes of inputs that the operator takes, as far as somebody has asked.

    Raises:
        ParamError: a parameter is unfit, where one of them says the type of the result.
    """

    __slots__ = ("_dtype", "_dtype_rule", "_name", "_shape", "_shape_rule", "attrs", "checked", "op", "outputs")

    def __init__(self, op: Operator, attrs: Mapping[str, str]) -> None:
        self.op = op
        self.attrs = attrs
        self.checked: set[tuple[Any, ...]] = set()
        self._name = op.name
        try:
            self.outputs = op.visible_outputs(attrs)
        except MXNetError:
            self.outputs = -1
        self._shape_rule = op.result_shape
        self._shape = _declared_shape(attrs) if op.result_shape == "given" else None
        self._dtype_rule, self._dtype = op.result_type, None
        if op.result_type in ("given", "given or first"):
            op.check(attrs)  # the type of an array that the engine will refuse to make would be wrong
            name = attrs.get("dtype", op.params["dtype"].get("default"))
            if name not in (None, "None"):
                self._dtype = numpy_dtype(name)
            elif op.result_type == "given":
                self._dtype = np.dtype(np.float32)
            self._dtype_rule = "given" if self._dtype is not None else "first"

    def command(self, inputs: Sequence[int], outputs: Sequence[int], into: bool = False) -> Invoke:
        """The command that calls it.

        Args:
            inputs, outputs: the arrays' numbers.
            into: whether the outputs exist already.
        """
        return {
            "do": "invoke",
            "op": self._name,
            "attrs": self.attrs,
            "inputs": inputs,
            "outputs": outputs,
            "into": into,
        }

    def result(self, inputs: Sequence[Handle]) -> tuple[Shape, DType]:
        """Shape and element type of every output; None for what only the engine can tell."""
        if not inputs:
            return self._shape, self._dtype
        first = inputs[0]
        shape, dtype = self._shape, self._dtype
        if self._shape_rule == "first":
            shape = first._shape
        elif self._shape_rule == "broadcast":
            shape = first._shape
            for other in inputs:
                if other._shape != shape:
                    shape = _broadcast([array._shape for array in inputs])
                    break
        if self._dtype_rule == "first":
            dtype = first._dtype
        elif self._dtype_rule == "first if real":
            dtype = first._dtype if first._dtype is not None and first._dtype.kind == "f" else None
        return shape, dtype


_forms: dict[tuple[Any, ...], InvokeForm] = {}


def form_of(op: Operator, attrs: Mapping[str, str]) -> InvokeForm:
    """The form of calls of `op` with parameters as strings; the same one as long as few others come between."""
    key = (op, *attrs.items())
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= MAX_FORMS:
            _forms.clear()
        form = _forms[key] = InvokeForm(op, dict(attrs))
    return form


_plain_forms: dict[str, InvokeForm] = {}
when_learnt(lambda op: _plain_forms.clear())


def plain_form(name: str) -> InvokeForm:
    """The form of calls without parameters of the operator of that name.

    Raises:
        UnknownOperatorError: there is none.
    """
    form = _plain_forms.get(name)
    if form is None:
        form = _plain_forms[name] = InvokeForm(get(name), {})
    return form


def _declared_shape(attrs: Mapping[str, str]) -> Shape:
    shape = attribute_value(attrs.get("shape", "None"))
    if isinstance(shape, int):
        shape = (shape,)
    if shape is not None and NP_SHAPE in attrs:
        return shape if min(shape, default=0) >= 0 else None
    return shape if shape and min(shape) > 0 else None


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    known = [shape for shape in shapes if shape is not None]
    try:
        return np.broadcast_shapes(*known) if len(known) == len(shapes) else None
    except ValueError:
        return None  # the engine refuses it, in its own words
