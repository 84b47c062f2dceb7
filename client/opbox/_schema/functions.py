"""Functions and methods made from the catalogue, the same for symbols and arrays.

A function sorts its arguments into tensors and parameters and hands them to its class of tensors:
`tensor._apply(op, hint, tensors, named, params, keywords)` composes a symbol or runs the operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from opbox_protocol.errors import ParamError
from opbox_protocol.mxnet import dtype_name

from ..base import Null, value_text
from .operator import Operator, operators, when_learnt
from .parameters import default_of, described

__all__ = ["KEYWORDS", "add_methods", "build", "docstring", "method_names"]

KEYWORDS = ("name", "attr", "out")
"""Arguments that every function has, beside the operator's parameters."""


def build(op: Operator, name: str, hint: str, tensor: Any) -> Callable[..., Any]:
    """The function of an operator under one of its names.

    Args:
        op: the operator.
        name: the function's name.
        hint: what automatic names of its nodes begin with.
        tensor: Symbol or NDArray.
    """
    order = (*op.tensors, *op.params)
    inputs = frozenset(op.tensors)
    symbols = tensor.__name__ == "Symbol"
    kind = "a Symbol" if symbols else "an NDArray"

    def sorted_call(*args: Any, **kwargs: Any) -> Any:
        keywords = {key: kwargs.pop(key) for key in KEYWORDS if key in kwargs}
        tensors: list[Any] = []
        named: dict[str, Any] = {}
        params: dict[str, Any] = {}
        if op.count is not None:
            for value in args:
                if not _takes(value):
                    remedy = f": write {name}(*…)" if isinstance(value, list | tuple) else _elsewhere(value)
                    raise TypeError(f"{name}: expected {tensor.__name__}s by position, got {value_text(value)}{remedy}")
            tensors = list(args)
        else:
            if len(args) > len(order):
                raise ParamError(
                    f"{name}: expected at most {len(order)} arguments ({', '.join(order)}), got {len(args)}"
                )
            for key, value in zip(order, args, strict=False):
                if key in kwargs:
                    raise TypeError(f"{name}() got multiple values for argument {key!r}")
                if key not in inputs:
                    params[key] = value
                elif value is not None:
                    named[key] = _tensor(value, key)
        for key, value in kwargs.items():
            if isinstance(value, tensor):
                named[key] = value
            elif key in inputs:
                if value is not None:
                    named[key] = _tensor(value, key)
            elif value is not Null:
                params[key] = value
        if params.get("dtype") is not None:
            params["dtype"] = dtype_name(params["dtype"])
        return tensor._apply(op, hint, tensors, named, params, keywords)

    def _takes(value: Any) -> bool:
        """True if a value is a tensor of this class; for arrays, one of another library with MXNet's methods too."""
        return isinstance(value, tensor) or (
            not symbols and hasattr(value, "asnumpy") and not hasattr(value, "list_arguments")
        )

    def _elsewhere(value: Any) -> str:
        """Return a hint to the function that takes the other kind of tensor."""
        if symbols:
            return ": the function of mx.nd takes arrays" if hasattr(value, "shape") else ""
        return ": the function of mx.sym takes Symbols" if hasattr(value, "list_arguments") else ""

    def _tensor(value: Any, key: str) -> Any:
        if _takes(value):
            return value
        raise TypeError(f"{name}: argument {key} must be {kind}, got {value_text(value)}{_elsewhere(value)}")

    function: Any = tensor._shortened(op, sorted_call)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = docstring(op, name)
    function.__signature__ = signature(op)
    result: Callable[..., Any] = function
    return result


_signatures: dict[str, inspect.Signature] = {}


def signature(op: Operator) -> inspect.Signature:
    """The arguments of an operator's function: tensors, parameters with their defaults, name and attr."""
    if op.name not in _signatures:
        kind = inspect.Parameter
        keyword: Any = kind.POSITIONAL_OR_KEYWORD
        arguments: list[inspect.Parameter] = []
        if op.count is not None:
            arguments.append(kind("data", kind.VAR_POSITIONAL))
            keyword = kind.KEYWORD_ONLY
        arguments += [kind(name, keyword, default=None) for name in op.tensors]
        arguments += [kind(name, keyword, default=schema.get("default", Null)) for name, schema in op.params.items()]
        arguments += [kind(name, kind.KEYWORD_ONLY, default=None) for name in KEYWORDS if name not in op.params]
        arguments.append(kind("kwargs", kind.VAR_KEYWORD))
        _signatures[op.name] = inspect.Signature(arguments)
    return _signatures[op.name]


def docstring(op: Operator, name: str) -> str:
    """Return the text that `help` shows: the operator's description, inputs, parameters with defaults, outputs."""
    lines = [op.doc or op.name, ""]
    if name != op.name:
        lines += [f"Another name of `{op.name}`.", ""]
    lines.append("Args:")
    if op.count is not None:
        lines.append("    *data: the inputs.")
    lines += [f"    {name}: an input." for name in op.tensors]
    for key, schema in op.params.items():
        default = default_of(schema)
        needed = "required" if default == "..." else f"default {default}"
        text = f"    {key}: {described(schema, op.definitions)}; {needed}. {schema.get('description', '')}"
        lines.append(text.rstrip())
    lines.append("    name: the name of the node or result.")
    return "\n".join(lines)


def method_names() -> dict[str, Operator]:
    """The operators that are methods of NDArray and Symbol too, by the methods' names."""
    return {name: op for op in operators() for name in op.methods}


def add_methods(cls: type) -> None:
    """Give a base class of tensors the methods of the catalogue, and of operators learnt later; its own stay."""

    def add(op: Operator) -> None:
        for name in op.methods:
            if name not in cls.__dict__:
                setattr(cls, name, _method(name, op))

    for op in operators():
        add(op)
    when_learnt(add)


_OF_NUMPY = {"dtype": None, "kind": None, "order": None, "stable": None, "decimals": 0}
"""Default arguments that numpy's functions pass on to methods, as `np.mean(x)` does to `x.mean`."""


def _method(name: str, op: Operator) -> Callable[..., Any]:
    functions: dict[type, Callable[..., Any]] = {}

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {
                key: value
                for key, value in kwargs.items()
                if key in op.params or key not in _OF_NUMPY or value is not _OF_NUMPY[key]
            }
        tensor = self._tensor
        if tensor not in functions:
            functions[tensor] = build(op, name, name.lower(), tensor)
        return functions[tensor](self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name}` of this: {op.doc}"
    return method
