"""Reads the arguments of `export_model`: a symbol and parameters, as objects or as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..symbol import Symbol, load

__all__ = ["loaded_params", "loaded_symbol"]

Arrays = dict[str, np.ndarray[Any, Any]]


def loaded_symbol(source: Any) -> Symbol:
    """The network, read from its file if it is a path.

    Raises:
        TypeError: it is neither a symbol nor a path.
        FileNotFoundError: there is no such file.
    """
    if isinstance(source, Symbol):
        return source
    if not isinstance(source, str | Path):
        raise TypeError(f"export_model: sym: expected a Symbol or a path, got {type(source).__name__}")
    if not Path(source).is_file():
        raise FileNotFoundError(f"export_model: sym: expected the path of a -symbol.json, got {str(source)!r}: no file")
    return load(source)


def loaded_params(source: Any) -> Arrays:
    """The parameters by their plain names.

    Raises:
        TypeError: they are no mapping, pair of mappings or path.
        FileNotFoundError: there is no such file.
    """
    if isinstance(source, str | Path):
        if not Path(source).is_file():
            raise FileNotFoundError(
                f"export_model: params: expected the path of a .params file, got {str(source)!r}: no file"
            )
        source = nd.load(source)
        if not isinstance(source, Mapping):
            raise ValueError("export_model: params: expected a file of arrays with names, got a list of arrays")
    if isinstance(source, Mapping):
        parts: Sequence[Any] = [source]
    elif isinstance(source, list | tuple) and len(source) == 2:
        parts = source
    else:
        raise TypeError(
            "export_model: params: expected a dict of arrays, [arg_params, aux_params] or a path, "
            f"got {type(source).__name__}"
        )
    arrays: Arrays = {}
    for part in parts:
        if not isinstance(part, Mapping):
            raise TypeError(f"export_model: params: expected dicts of arrays, got {type(part).__name__}")
        for key, value in part.items():
            arrays[_plain(key)] = _array(key, value)
    return arrays


def _plain(key: Any) -> str:
    kind, _, name = str(key).partition(":")
    return name if kind in ("arg", "aux") and name else str(key)


def _array(key: Any, value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "asnumpy"):
        return np.asarray(value.asnumpy())
    if not isinstance(value, np.ndarray):
        raise TypeError(f"export_model: params: {key}: expected an NDArray, got {type(value).__name__}")
    return value
