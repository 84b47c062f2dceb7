"""Variables, and groups of symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import attribute
from .._schema.parameters import attribute_text, dtype_name
from ..base import source_line
from .node import Node
from .symbol import HIDDEN, Symbol

__all__ = ["Group", "Variable", "var"]

_DTYPES = {
    name: str(i) for i, name in enumerate(["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"])
} | {"int16": "8", "uint16": "9", "uint32": "10", "uint64": "11", "bfloat16": "12"}
_STYPES = {"default": "0", "row_sparse": "1", "csr": "2"}


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
    attrs = {f"__{key}__" if key in HIDDEN else key: value for key, value in attrs.items()}
    if shape is not None:
        attrs["__shape__"] = attribute_text(shape if isinstance(shape, int) else tuple(shape))
    if lr_mult is not None:
        attrs["__lr_mult__"] = attribute_text(lr_mult)
    if wd_mult is not None:
        attrs["__wd_mult__"] = attribute_text(wd_mult)
    if dtype is not None:
        attrs["__dtype__"] = _DTYPES[dtype_name(dtype)]
    if init is not None:
        attrs["__init__"] = init if isinstance(init, str) else init.dumps()
    if stype is not None:
        attrs["__storage_type__"] = _STYPES[stype]
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
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
    if not symbols or any(not isinstance(each, Symbol) for each in symbols):
        raise TypeError("Group: expected a list of one symbol or more, and nothing else in it")
    return Symbol([head for each in symbols for head in each._heads])
