"""Functions and methods made from the catalogue, the same for symbols and arrays.

A function sorts its arguments into tensors and parameters and hands them on:
`call(op, hint, tensors, named, params, keywords)`, which composes a symbol or runs the operator.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from opbox_protocol.errors import ParamError
from opbox_protocol.mxnet import dtype_name

from .operator import Operator, operators
from .parameters import default_of, described

__all__ = ["FLUENT", "KEYWORDS", "PREFIXES", "add_methods", "docstring", "named_functions", "populate"]

Call = Callable[..., Any]
KEYWORDS = ("name", "attr", "out")
"""Arguments of every function that are no parameters of the operator."""

PREFIXES = {"contrib": "_contrib_", "linalg": "_linalg_", "image": "_image_", "sparse": "_sparse_"}
"""Submodules, and the beginnings of the names of the operators in them."""

# fmt: off
FLUENT = (
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "argmax", "argmax_channel", "argmin",
    "argsort", "broadcast_axes", "broadcast_like", "broadcast_to", "cbrt", "ceil", "clip", "cos", "cosh", "degrees",
    "depth_to_space", "diag", "exp", "expand_dims", "expm1", "fix", "flatten", "flip", "floor", "log", "log10",
    "log1p", "log2", "log_softmax", "max", "mean", "min", "nanprod", "nansum", "norm", "one_hot", "ones_like",
    "pad", "pick", "prod", "radians", "rcbrt", "reciprocal", "relu", "repeat", "reshape", "reshape_like", "rint",
    "round", "rsqrt", "shape_array", "sigmoid", "sign", "sin", "sinh", "size_array", "slice", "slice_axis",
    "slice_like", "softmax", "softmin", "sort", "space_to_depth", "split", "sqrt", "square", "squeeze", "sum",
    "swapaxes", "take", "tan", "tanh", "tile", "topk", "transpose", "trunc", "zeros_like",
)
# fmt: on
"""The operators that are methods too."""


def named_functions(namespace: str) -> dict[str, tuple[Operator, str]]:
    """The functions of a submodule: operator and the hint of automatic names, by function name.

    Args:
        namespace: "op" for plain names, "_internal" for those with an underscore, or one of `PREFIXES`.
    """
    found: dict[str, tuple[Operator, str]] = {}
    special = (*PREFIXES.values(), "_random_")
    for op in operators():
        for name in (op.name, *op.aliases):
            prefix = next((each for each in special if name.startswith(each)), "")
            if namespace in PREFIXES:
                if prefix == PREFIXES[namespace]:
                    short = name[len(prefix) :]
                    found[short] = (op, short.lower())
            elif namespace == "_internal":
                if name.startswith("_"):
                    found[name] = (op, name.lower())
            elif not name.startswith("_"):
                found[name] = (op, name.lower())
    return found


def populate(module: dict[str, Any], namespace: str, call: Call, tensor: type) -> list[str]:
    """Put a submodule's functions into its globals and return their names, for `__all__`."""
    found = named_functions(namespace)
    for name, (op, hint) in found.items():
        function = build(op, name, hint, call, tensor)
        function.__module__ = module["__name__"]
        module[name] = function
    _populated[module["__name__"]] = (module, namespace, call, tensor)
    if namespace == "op":
        above = sys.modules[module["__name__"].rpartition(".")[0]]
        # Set here, and not written there, so that type checkers still know what there is.
        above.__dict__["__getattr__"] = partial(_unknown, above.__name__)
    return sorted(found)


def _unknown(module: str, name: str) -> Any:
    raise AttributeError(
        f"module {module!r} has no attribute {name!r}; mx.refresh_operators() learns the engine's own operators",
        name=name,
    )


_populated: dict[str, tuple[dict[str, Any], str, Call, type]] = {}


def refresh() -> None:
    """Make the functions of operators that the catalogue has learnt since, in their modules and above them."""
    for name, (module, namespace, call, tensor) in list(_populated.items()):
        before = set(module)
        for each in populate(module, namespace, call, tensor):
            if each not in before and namespace == "op":
                setattr(sys.modules[name.rpartition(".")[0]], each, module[each])


def build(op: Operator, name: str, hint: str, call: Call, tensor: type) -> Callable[..., Any]:
    """The function of an operator under one of its names."""
    order = (*op.tensors, *op.params)
    inputs = frozenset(op.tensors)

    def function(*args: Any, **kwargs: Any) -> Any:
        keywords = {key: kwargs.pop(key) for key in KEYWORDS if key in kwargs}
        tensors: list[Any] = []
        named: dict[str, Any] = {}
        params: dict[str, Any] = {}
        if op.count is not None:
            for each in args:
                if not isinstance(each, tensor) and not hasattr(each, "asnumpy"):
                    raise TypeError(f"{name}: expected {tensor.__name__}s by position, got {each!r}")
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
            elif value is not _null:
                params[key] = value
        if params.get("dtype") is not None:
            params["dtype"] = dtype_name(params["dtype"])
        return call(op, hint, tensors, named, params, keywords)

    def _tensor(value: Any, key: str) -> Any:
        if isinstance(value, tensor) or (hasattr(value, "asnumpy") and tensor.__name__ != "Symbol"):
            return value
        raise TypeError(f"{name}: argument {key} must be a {tensor.__name__}, got {value!r}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = docstring(op, name)
    function.__signature__ = signature(op)  # type: ignore[attr-defined]
    return function


def _null_mark() -> Any:
    from ..base import Null

    return Null


_null = _null_mark()
_signatures: dict[str, inspect.Signature] = {}


def signature(op: Operator) -> inspect.Signature:
    """The arguments of an operator's function: tensors, parameters with their defaults, name and attr."""
    if op.name not in _signatures:
        kind = inspect.Parameter
        keyword: Any = kind.POSITIONAL_OR_KEYWORD
        found: list[inspect.Parameter] = []
        if op.count is not None:
            found.append(kind("data", kind.VAR_POSITIONAL))
            keyword = kind.KEYWORD_ONLY
        found += [kind(name, keyword, default=None) for name in op.tensors]
        found += [kind(name, keyword, default=schema.get("default", _null)) for name, schema in op.params.items()]
        found += [kind(name, kind.KEYWORD_ONLY, default=None) for name in KEYWORDS if name not in op.params]
        found.append(kind("kwargs", kind.VAR_KEYWORD))
        _signatures[op.name] = inspect.Signature(found)
    return _signatures[op.name]


def docstring(op: Operator, name: str) -> str:
    """What `help` shows: what it computes, inputs, parameters with kinds and defaults, outputs."""
    lines = [op.doc or op.name, ""]
    if name != op.name:
        lines += [f"Another name of `{op.name}`.", ""]
    lines.append("Args:")
    if op.count is not None:
        lines.append("    *data: the inputs.")
    lines += [f"    {each}: an input." for each in op.tensors]
    for key, schema in op.params.items():
        default = default_of(schema)
        told = f"    {key}: {described(schema, op.definitions)}; " + (
            "required" if default == "..." else f"default {default}"
        )
        lines.append(told + f". {schema.get('description', '')}".rstrip())
    lines.append("    name: the name of the node or result.")
    return "\n".join(lines)


def add_methods(cls: type, package: str) -> None:
    """Give a class the methods of `FLUENT` that the catalogue has; each calls the function of `package`."""
    known = named_functions("op")
    for name in FLUENT:
        if name in known and name not in cls.__dict__:
            setattr(cls, name, _method(name, package, known[name][0]))


def _method(name: str, package: str, op: Operator) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        functions: Mapping[str, Any] = vars(sys.modules[f"{package}.op"])
        return functions[name](self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name}` of this: {op.doc}"
    return method
