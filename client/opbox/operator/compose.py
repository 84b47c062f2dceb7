"""`mx.sym.Custom`, `mx.nd.Custom`, and calling a NumpyOp or NDArrayOp on symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import attribute_text

from .custom import prop_class
from .definition import CUSTOM, CustomOperator, Definition, instance_signature, remember
from .native import PythonOp, check_class, made_with
from .sending import define

if TYPE_CHECKING:
    from ..ndarray import NDArray
    from ..symbol import Symbol

__all__ = ["array_custom", "native_symbol", "symbol_custom"]


def _operator(op_type: Any) -> CustomOperator:
    if not isinstance(op_type, str):
        raise MXNetError(f"Custom: op_type: expected the name of a registered operator, got {op_type!r}")
    return CustomOperator(Definition(CUSTOM, op_type, prop_class(op_type)))


def symbol_custom(
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
    from ..symbol.compose import create
    from ..symbol.symbol import Symbol

    if not all(isinstance(each, Symbol) for each in data):
        raise TypeError(f"Custom: expected Symbols by position, got {data[:3]!r}")
    named = {key: value for key, value in kwargs.items() if isinstance(value, Symbol)}
    params = {key: attribute_text(value) for key, value in kwargs.items() if key not in named}
    return Symbol(create(_operator(op_type), "custom", data, named, {**params, "op_type": op_type}, name, attr))


def native_symbol(instance: PythonOp, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """See `PythonOp.get_symbol`."""
    from ..symbol.compose import create
    from ..symbol.symbol import Symbol

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
    params = {"op_type": cls.__name__, **made_with(instance)}
    return Symbol(create(op, cls.__name__.lower(), args, kwargs, params, name, attr))


def array_custom(
    *data: NDArray, op_type: Any = None, out: Any = None, ctx: Any = None, name: str | None = None, **kwargs: Any
) -> Any:
    """Run an operator that was registered with `mx.operator.register` on arrays, at once.

    Args:
        data: its inputs and then its auxiliary states, by position; or by name as keywords.
        op_type: the name that it was registered by.
        out: arrays to write to.
        ctx: the device, when there are no inputs.
        name: has no effect.
        kwargs: further keywords go to the Prop's constructor, as strings.

    Returns:
        The output, or a list when there are several.

    Raises:
        MXNetError: no such operator is registered, or an input is missing.
    """
    from ..ndarray.array import NDArray
    from ..ndarray.invoke import _session, invoke

    op = _operator(op_type)
    named = {key: value for key, value in kwargs.items() if isinstance(value, NDArray)}
    attrs = {key: attribute_text(value) for key, value in kwargs.items() if key not in named}
    attrs["op_type"] = op_type
    op.check(attrs)
    names = op.input_names(attrs)
    rest = names[len(data) :]
    unknown = [key for key in named if key not in rest]
    missing = [key for key in rest if key not in named]
    if unknown or missing or len(data) > len(names):
        got = ", ".join([*(f"{len(data)} by position" for _ in data[:1]), *named]) or "none"
        raise MXNetError(f"Custom ({op_type}): expected the inputs {', '.join(names) or 'none'}, got {got}")
    inputs = [*data, *(named[key] for key in rest)]
    attrs["__code__"] = define(_session(op, inputs, out, ctx), op.definition, fresh=False)
    return invoke(op, attrs, inputs, out, ctx)
