"""The keyword arguments of a Prop's constructor: strings, as MXNet passes them, or what its annotations ask for.

def __init__(self, momentum, axis: int = 0, sizes: tuple[float, ...] = (), limit: int | None = None):
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from opbox_protocol.errors import MXNetError

from .custom import CustomOpProp

__all__ = ["make_prop"]


def _bool(text: str) -> bool:
    return {"True": True, "False": False, "true": True, "false": False, "1": True, "0": False}[text]


def _container(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = ast.literal_eval(text)
        return kind(value if isinstance(value, tuple | list | dict) else (value,))

    return read


_READ: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": _bool,
    "tuple": _container(tuple),
    "list": _container(list),
    "dict": _container(dict),
    "sequence": _container(tuple),
}
_MODULE = re.compile(r"\b[a-z_.]+\.(?=\w)")
_OPTIONAL = re.compile(r"Optional\[(.*)\]")


def make_prop(op_type: str, cls: type[CustomOpProp], kwargs: Mapping[str, str]) -> CustomOpProp:
    """An instance for `kwargs`, which are strings.

    A parameter annotated int, float, bool, tuple, list or dict is given that, and with `| None` also None; any other
    gets the string.

    Raises:
        MXNetError: the constructor takes no such arguments, or a value is not of the annotated kind.
    """
    signature = inspect.signature(cls)
    keywords = {}
    for name, text in kwargs.items():
        parameter = signature.parameters.get(name)
        keywords[name] = _typed(op_type, name, text, parameter.annotation if parameter is not None else "")
    try:
        signature.bind(**keywords)
    except TypeError as error:
        raise MXNetError(f"Custom: op_type {op_type!r}: {cls.__name__}{signature}: {error}") from None
    return cls(**keywords)


def _typed(op_type: str, name: str, text: str, annotation: Any) -> Any:
    shown = annotation.__name__ if type(annotation) is type else _MODULE.sub("", str(annotation))
    kinds = _OPTIONAL.sub(r"\1 | None", shown).split(" | ")
    if text == "None" and "None" in kinds:
        return None
    wanted = [kind.partition("[")[0].lower() for kind in kinds if kind != "None"]
    read = _READ.get(wanted[0]) if len(wanted) == 1 else None
    if read is None:
        return text
    try:
        return read(text)
    except (ValueError, KeyError, SyntaxError, TypeError):
        raise MXNetError(f"Custom: op_type {op_type!r}: parameter {name!r}: expected {shown}, got {text!r}") from None
