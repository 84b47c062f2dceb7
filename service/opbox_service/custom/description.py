"""Asks a user's operator for its names, shapes, types, what backward reads, and its computation.

One face for a CustomOpProp and for an instance of NumpyOp or NDArrayOp. Whatever they return is checked; what is not as
it should be is a UserCodeError that says what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox.operator.custom import check_operator
from opbox.operator.instances import check_class, rebuilt
from opbox.operator.keywords import make_prop
from opbox_ops.infer import DType, Shape, ShapeList, TypeList, known
from opbox_protocol.errors import MXNetError, ParamError, UserCodeError
from opbox_protocol.mxnet import numpy_dtype
from opbox_protocol.shapes import from_mxnet, to_mxnet

from .definitions import UploadedOperator
from .user_traceback import call, user_error

__all__ = ["Description", "describe"]


class Description:
    """An operator's description.

    Args:
        definition: its code.
        user_object: the Prop, or the instance of NumpyOp or NDArrayOp.

    Attributes:
        arguments, auxiliary_states, outputs: names.
    """

    def __init__(self, definition: UploadedOperator, user_object: Any) -> None:
        self.definition = definition
        self.user_object = user_object
        self.arguments = self._names("list_arguments")
        self.outputs = self._names("list_outputs")
        self.auxiliary_states = self._names("list_auxiliary_states") if definition.kind == "Custom" else []

    def _names(self, method: str) -> list[str]:
        names = call(method, getattr(self.user_object, method))
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise UserCodeError(f"{method}: expected a list of names, got {names!r}")
        return list(names)

    # -- shapes and types ---------------------------------------------------------------------------------------

    def infer_shape(self, ins: ShapeList, outs: ShapeList) -> None:
        """Ask for shapes, and merge the answer. While inputs are unknown, an exception only means: not yet."""
        count = len(self.arguments)
        complete = all(known(shape) for shape in ins[:count])
        shapes = [list(to_mxnet(shape)) for shape in ins[:count]]
        lists = self._ask("infer_shape", shapes, complete)
        if lists is None:
            return
        self._merge(lists, ins, outs, lambda what, shape: _shape(what, shape, complete))

    def infer_type(self, ins: TypeList, outs: TypeList) -> None:
        """Ask for types, and merge the answer."""
        count = len(self.arguments)
        complete = all(dtype is not None for dtype in ins[:count])
        if not hasattr(self.user_object, "infer_type"):
            first = next((dtype for dtype in ins[:count] if dtype is not None), None if count else np.dtype(np.float32))
            self._merge(([first] * count, [first] * len(outs), []), ins, outs, _type)
            return
        lists = self._ask("infer_type", [None if dtype is None else dtype.type for dtype in ins[:count]], complete)
        if lists is not None:
            self._merge(lists, ins, outs, _type)

    def _ask(self, method: str, inputs: list[Any], complete: bool) -> tuple[Any, Any, Any] | None:
        try:
            answer = getattr(self.user_object, method)(inputs)
        except BaseException as error:
            if complete:
                raise user_error(method, error) from error
            return None
        if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
            got = f"{len(answer)} of them" if isinstance(answer, tuple | list) else f"{answer!r}"
            raise UserCodeError(f"{method}: expected two or three lists (inputs, outputs, auxiliary states), got {got}")
        lists = (*answer, []) if len(answer) == 2 else tuple(answer)
        kinds = (("inputs", self.arguments), ("outputs", self.outputs), ("auxiliary states", self.auxiliary_states))
        for values, (kind, names) in zip(lists, kinds, strict=True):
            if not isinstance(values, list | tuple) or len(values) != len(names):
                got = f"{len(values)}" if isinstance(values, list | tuple) else f"{values!r}"
                raise UserCodeError(
                    f"{method}: {kind}: expected {len(names)} ({', '.join(names) or 'none'}), got {got}"
                )
        return lists

    def _merge(self, lists: Sequence[Any], ins: Any, outs: Any, read: Any) -> None:
        inputs, outputs, states = lists
        for i, (name, value) in enumerate(zip(self.arguments, inputs, strict=True)):
            ins.merge(i, read(name, value))
        for i, (name, value) in enumerate(zip(self.auxiliary_states, states, strict=True)):
            ins.merge(len(self.arguments) + i, read(name, value))
        for i, (name, value) in enumerate(zip(self.outputs, outputs, strict=True)):
            outs.merge(i, read(name, value))

    # -- running ------------------------------------------------------------------------------------------------

    def backward_reads(self) -> tuple[int, ...]:
        """Return the numbers of the arrays that backward reads: gradients of the outputs, then inputs, then outputs."""
        outs, args = len(self.outputs), len(self.arguments)
        grads = list(range(outs))
        data, results = list(range(outs, outs + args)), list(range(outs + args, outs + args + outs))
        if self.definition.kind == "_NumpyOp":
            deps: Any = [*(grads if call("need_top_grad", self.user_object.need_top_grad) else []), *data, *results]
        else:
            method = "declare_backward_dependency"
            deps = call(method, getattr(self.user_object, method), grads, data, results)
            if not isinstance(deps, list | tuple) or not all(type(d) is int and 0 <= d < 2 * outs + args for d in deps):
                raise UserCodeError(f"{method}: expected some of the numbers it was given, got {deps!r}")
        return tuple(sorted(set(deps)))

    def create(self, context: Any, shapes: list[Any], dtypes: list[Any]) -> Any:
        """The object with forward and backward, one for each executor."""
        if self.definition.kind != "Custom":
            return self.user_object
        operator = call(
            "create_operator",
            self.user_object.create_operator,
            context,
            [list(shape) for shape in shapes],
            [np.dtype(dtype).type for dtype in dtypes],
        )
        call("", check_operator, operator, f"op_type {self.definition.op_type!r}")
        return operator


def describe(definition: UploadedOperator, parameters: Mapping[str, str]) -> Description:
    """The description of a node with these parameters.

    Raises:
        ParamError: the operator takes no such parameters.
        UserCodeError: its code failed.
    """
    cls: Any = definition.cls()
    try:
        if definition.kind == "Custom":
            user_object: Any = make_prop(definition.op_type, cls, parameters)
        else:
            check_class(cls, definition.op_type)
            user_object = rebuilt(cls, parameters)
    except MXNetError as error:
        if type(error) is MXNetError:
            raise ParamError(str(error)) from None
        raise user_error("its constructor", error) from error
    except BaseException as error:
        raise user_error("its constructor", error) from error
    return Description(definition, user_object)


def _shape(what: str, value: Any, complete: bool) -> Shape:
    """A shape from user code; while inputs are unknown, 0 is an unknown dimension and () an unknown shape."""
    if value is None:
        return None
    try:
        dims = tuple(int(d) for d in value)
        if any(int(d) != d or d < -1 for d in value):
            raise ValueError
    except (TypeError, ValueError):
        raise UserCodeError(f"infer_shape: {what}: expected a shape (a tuple of integers), got {value!r}") from None
    if complete:
        return dims
    return from_mxnet(dims)


def _type(what: str, value: Any) -> DType:
    if value is None:
        return None
    try:
        return numpy_dtype(value)
    except TypeError:
        raise UserCodeError(f"infer_type: {what}: expected a numpy type, got {value!r}") from None
