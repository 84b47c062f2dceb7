"""Variables, and groups of symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol.mxnet import STORAGE_TYPES, attribute_text, hidden_key, is_hidden, type_number

from .. import attribute
from ..base import source_line, value_text
from .node import Node
from .symbol import Symbol

__all__ = ["Group", "Variable", "var"]


def var(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: Sequence[int] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str | None = None,
    **kwargs: Any,
) -> Symbol:
    """A variable: an argument to feed or to learn.

    Args:
        name: its name in `bind` and in files.
        attr: hidden attributes.
        shape: its shape, 0 for unknown dimensions.
        lr_mult, wd_mult: factors of the learning rate and the weight decay.
        dtype: its element type.
        init: an initializer, or what its `dumps` gives.
        stype: its storage type; kept, all arrays are dense.
        kwargs: further attributes, named `__like_this__`.

    Raises:
        TypeError: the name is not a string.
        ValueError: an attribute's name is not of that form.
    """
    if not isinstance(name, str):
        raise TypeError(f"Variable: name: expected a string, got {type(name).__name__}")
    attrs = attribute.current().get(attr)
    attrs = {hidden_key(key): value for key, value in attrs.items()}
    if shape is not None:
        attrs["__shape__"] = attribute_text(shape if isinstance(shape, int) else tuple(shape))
    if lr_mult is not None:
        attrs["__lr_mult__"] = attribute_text(lr_mult)
    if wd_mult is not None:
        attrs["__wd_mult__"] = attribute_text(wd_mult)
    if dtype is not None:
        attrs["__dtype__"] = str(type_number(dtype))
    for key, value in attrs.items():
        if not isinstance(value, str):
            raise ValueError(f"Variable: attribute {key!r}: expected a string, got {type(value).__name__}")
    if init is not None and not isinstance(init, str) and not hasattr(init, "dumps"):
        raise TypeError(f"Variable: init: expected one such as mx.init.Zero(), got {value_text(init)}")
    if init is not None:
        attrs["__init__"] = init if isinstance(init, str) else init.dumps()
    if stype is not None:
        attrs["__storage_type__"] = STORAGE_TYPES[stype]
    for key, value in kwargs.items():
        if not is_hidden(key):
            raise ValueError(
                f"Variable: attribute {key!r}: expected a name between double underscores, such as __{key.strip('_')}__"
            )
        attrs[key] = attribute_text(value)
    return Symbol([(Node(None, name, attrs, [], source_line()), 0)])


Variable = var


def Group(symbols: Sequence[Symbol]) -> Symbol:
    """Several symbols as one, with all their outputs.

    Raises:
        TypeError: the list is empty, or holds something else than symbols.
    """
    symbols = list(symbols)
    if not symbols or any(not isinstance(symbol, Symbol) for symbol in symbols):
        raise TypeError("Group: expected a list of one symbol or more, and nothing else in it")
    return Symbol([head for symbol in symbols for head in symbol._heads])
