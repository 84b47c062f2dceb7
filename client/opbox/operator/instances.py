"""Writes instances of NumpyOp and NDArrayOp as text, from which the engine creates its own."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from .custom import check_signature
from .values import MAX_SOURCE_ELEMENTS, literal

__all__ = ["check_class", "constructor_text", "rebuilt"]

_ARRAY = "numpy.ndarray"
NAMED: Mapping[str, tuple[str, ...]] = {
    "forward": ("in_data", "out_data"),
    "backward": ("out_grad", "in_data", "out_data", "in_grad"),
}


def check_class(cls: type, subject: str) -> None:
    """MXNetError unless forward and backward take what they will be given."""
    for method in NAMED:
        check_signature(cls, method, subject, NAMED)


def constructor_text(instance: Any) -> dict[str, str]:
    """Return the constructor's arguments, and attributes set since, as text from which an instance is made again.

    Raises:
        MXNetError: a constructor argument is no plain value.
    """
    args, kwargs = instance._arguments
    texts = {
        "args": _text(instance, "constructor arguments", list(args)),
        "kwargs": _text(instance, "constructor arguments", dict(kwargs)),
    }
    state = {}
    for name, value in vars(instance).items():
        text = literal(_plain(value))
        if name != "_arguments" and text is not None and _readable(text):
            state[name] = _plain(value)
    texts["state"] = _text(instance, "attributes", state)
    return texts


def _text(instance: Any, what: str, values: Any) -> str:
    text = literal(_plain(values))
    if text is None or not _readable(text):
        raise MXNetError(
            f"{type(instance).__name__}: {what}: expected plain values (numbers, strings, small numpy arrays, tuples, "
            f"lists, dicts), which the engine can make an instance of its own with, got {values!r}"
        )
    return text


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's and its arrays as dicts, inside containers too."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.size <= MAX_SOURCE_ELEMENTS:
        return {_ARRAY: value.dtype.name, "shape": value.shape, "values": value.ravel().tolist()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def _restored(value: Any) -> Any:
    """Restore a value from the form that `_plain` gave it; MXNetError for an array's that is invalid."""
    if type(value) is dict and _ARRAY in value:
        try:
            return np.array(value["values"], np.dtype(value[_ARRAY])).reshape(value["shape"])
        except (KeyError, TypeError, ValueError):
            raise MXNetError(f"expected an array's type, shape and values, got {value!r}") from None
    if type(value) in (list, tuple):
        return type(value)(_restored(item) for item in value)
    if type(value) is dict:
        return {key: _restored(item) for key, item in value.items()}
    return value


def _readable(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except ValueError:
        return False
    return True


def rebuilt(cls: type, texts: Mapping[str, str]) -> Any:
    """An instance of `cls` from what `constructor_text` wrote.

    Raises:
        MXNetError: the text is none of `constructor_text`.
    """
    read: list[Any] = []
    for key, kind in (("args", list), ("kwargs", dict), ("state", dict)):
        try:
            value = ast.literal_eval(texts.get(key, "[]" if kind is list else "{}"))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
        if type(value) is not kind:
            raise MXNetError(f"{cls.__name__}: {key}: expected a {kind.__name__} of plain values, got {texts[key]!r}")
        read.append(value)
    args, kwargs, state = _restored(read)
    instance = cls(*args, **kwargs)
    for name, value in state.items():
        setattr(instance, name, value)
    return instance
