"""MXNet 1.9.1's numbers, codes and text forms of attributes, in this one place."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "BOOLEANS",
    "GRAD_REQS",
    "HIDDEN_KEYS",
    "INTEGER",
    "LEGACY_KEYS",
    "NP_SHAPE",
    "STATE_INITIALIZERS",
    "STORAGE_TYPES",
    "TYPES",
    "VERSION",
    "attribute_text",
    "attribute_value",
    "dtype_name",
    "head_copy_name",
    "hidden_key",
    "is_hidden",
    "numpy_dtype",
    "tuple_parts",
    "type_number",
]

VERSION = 10901
"""MXNet's version number as symbol files store it."""

# -- attributes of nodes ----------------------------------------------------------------------------------------------

LEGACY_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
"""Hidden attributes that files before 1.0 wrote without underscores."""
HIDDEN_KEYS = (*LEGACY_KEYS, "profiler_scope")
"""Hidden attributes that users write without the underscores they are kept with."""
STATE_INITIALIZERS = {"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'}
"""`__init__` of auxiliary states by their input's name; files before 0.9.4 do not hold it."""

NP_SHAPE = "__np_shape__"
"""Hidden attribute of what is read in numpy mode: 0 in its shapes is a size, and what is unknown is -1 or None."""


def is_hidden(key: str) -> bool:
    """Return whether an attribute is kept for passes and not for the operator, as `__shape__` and `__lr_mult__` are."""
    return len(key) > 4 and key.startswith("__") and key.endswith("__")


def hidden_key(key: str) -> str:
    """The key under which a node keeps an attribute: `__lr_mult__` for `lr_mult`, others as they are."""
    return f"__{key}__" if key in HIDDEN_KEYS else key


# -- numbers ----------------------------------------------------------------------------------------------------------

TYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(kind)
    for kind in (
        "<f4", "<f8", "<f2", "u1", "<i4", "i1", "<i8", "?", "<i2", "<u2", "<u4", "<u8", ml_dtypes.bfloat16,
    )
)  # fmt: skip
"""Element types by MXNet's number, as `__dtype__` and files of arrays have it."""
STORAGE_TYPES = {"default": "0", "row_sparse": "1", "csr": "2"}
"""Codes of storage types by name, as in `__storage_type__`."""
GRAD_REQS = ("write", "add", "null")
"""The requests for a gradient: write it, add it to what is there, or leave it out."""


def numpy_dtype(value: Any) -> np.dtype[Any]:
    """NumPy's dtype of a name ("float32", "bfloat16"), a type or a dtype.

    Raises:
        TypeError: it is none.
    """
    try:
        plain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if isinstance(value, str) and value == "bfloat16" else value)
    except TypeError:
        from .near_names import near_names  # for whoever has misspelt something

        names = [kind.name for kind in TYPES]
        near = near_names(value, names, most=1) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"element type: expected one of {', '.join(names)}, got {value!r}{hint}") from None
    return plain


def dtype_name(value: Any) -> str:
    """The name of an element type: "float32", "bfloat16"; takes what `numpy_dtype` takes."""
    return str(numpy_dtype(value).name)


def type_number(value: Any) -> int:
    """MXNet's number of an element type.

    Raises:
        ValueError: it has none.

    Example:
        >>> type_number("int16")
        8
    """
    dtype = numpy_dtype(value)
    try:
        return TYPES.index(dtype)
    except ValueError:
        raise ValueError(f"element type: expected one of {', '.join(t.name for t in TYPES)}, got {dtype}") from None


# -- text -------------------------------------------------------------------------------------------------------------

INTEGER = re.compile(r"[+-]?\d+[lL]?")
"""An integer as Python 2's MXNet wrote it too: `3L`."""
BOOLEANS = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}


def attribute_text(value: Any) -> str:
    """The string that MXNet's Python stores for a parameter: `str`, with numpy's numbers as plain ones.

    Example:
        >>> attribute_text((np.int64(2), 2))
        '(2, 2)'
    """
    if isinstance(value, str):
        return value
    if type(value) in (bool, int, float):
        return str(value)
    if isinstance(value, tuple | list):
        return str(_plain(value))
    if isinstance(value, np.generic):
        return str(value.item())
    if isinstance(value, np.ndarray):
        return str(tuple(value.tolist()))
    if isinstance(value, type) and (issubclass(value, np.generic) or value in (float, int, bool, ml_dtypes.bfloat16)):
        return dtype_name(value)
    if isinstance(value, np.dtype):
        return dtype_name(value)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def tuple_parts(text: str) -> list[str]:
    """The items of "(2, 2)", "[2, 2]" or "2, 2" as strings; a comma behind the last is none.

    Example:
        >>> tuple_parts("(2, None,)")
        ['2', 'None']
    """
    text = text.strip()
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        text = text[1:-1]
    parts = [part.strip() for part in text.split(",")]
    if parts[-1] == "":
        parts.pop()
    return parts


def attribute_value(text: Any) -> Any:
    """An attribute's value: a number, a boolean, None, a tuple, or the string itself.

    Example:
        >>> attribute_value("(2, 0.5)")
        (2, 0.5)
    """
    if not isinstance(text, str):
        return text
    text = text.strip()
    if text in ("True", "true", "False", "false"):
        return BOOLEANS[text]
    if text == "None":
        return None
    if INTEGER.fullmatch(text):
        return int(text.rstrip("lL"))
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        return tuple(attribute_value(part) for part in tuple_parts(text) if part)
    try:
        return float(text)
    except ValueError:
        return text


MAX_COPY_NAME = 1024
"""Characters from which the names of copies of copies grow no more: a graph may have very many equal heads."""


def head_copy_name(name: str) -> str:
    """The name of the node that copies a head which equals another one, by the name of what it copies."""
    return f"{name}_0_copy" if len(name) < MAX_COPY_NAME else name
