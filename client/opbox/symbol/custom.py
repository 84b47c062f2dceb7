"""`mx.sym.Custom`, and calling a NumpyOp or NDArrayOp on symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import attribute_text

from ..operator.definition import CustomOperator, instance_signature, registered, remember
from ..operator.instances import check_class, constructor_text
from .compose import create
from .symbol import Symbol

__all__ = ["Custom", "symbol_of_instance"]


def Custom(
    *data: Symbol, op_type: Any = None, name: str | None = None, attr: Mapping[str, str] | None = None, **kwargs: Any
) -> Symbol:
    """A call of an operator that was registered with `mx.operator.register`.

    Args:
        data: its inputs, by position; or by the names of its list_arguments as keywords. Those not given become
            variables named after the node.
        op_type: the name that it was registered by.
        name, attr: the node's name and hidden attributes.
        kwargs: further keywords go to the Prop's constructor, as strings.

    Raises:
        MXNetError: no such operator is registered, or its Prop takes no such parameters.

    Example:
        >>> mx.sym.Custom(data=fc3, name="softmax", op_type="softmax")
    """
    if not all(isinstance(symbol, Symbol) for symbol in data):
        raise TypeError(f"Custom: expected Symbols by position, got {data[:3]!r}")
    named = {key: value for key, value in kwargs.items() if isinstance(value, Symbol)}
    params = {key: attribute_text(value) for key, value in kwargs.items() if key not in named}
    return Symbol(create(registered(op_type), "custom", data, named, {**params, "op_type": op_type}, name, attr))


def symbol_of_instance(instance: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """See `PythonOp.get_symbol`."""
    kwargs = dict(kwargs)
    name, attr = kwargs.pop("name", None), kwargs.pop("attr", None)
    cls = type(instance)
    if not instance.kind:
        raise MXNetError(f"{cls.__name__}: expected a subclass of NumpyOp or NDArrayOp, got one of PythonOp")
    check_class(cls, cls.__name__)
    for value in (*args, *kwargs.values()):
        if not isinstance(value, Symbol):
            raise TypeError(f"{cls.__name__}: expected Symbols as inputs, got {value!r}")
    op = CustomOperator(remember(instance.kind, cls), instance_signature(instance))
    params = {"op_type": cls.__name__, **constructor_text(instance)}
    return Symbol(create(op, cls.__name__.lower(), args, kwargs, params, name, attr))
