"""Checkpoints: a symbol's JSON and its parameters' file, in MXNet's names and formats."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from typing import Any

from opbox_protocol.errors import DamagedFileError

from . import ndarray as nd
from . import symbol as sym
from .base import value_text

__all__ = ["checkpoint_file", "joined_params", "load_checkpoint", "load_params", "save_checkpoint", "split_params"]


def split_params(arrays: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and auxiliary states of a file whose names are "arg:…" and "aux:…".

    Raises:
        DamagedFileError: they have no names, or one has another prefix, or none.
    """
    if not isinstance(arrays, Mapping):
        raise DamagedFileError(
            f"{where}: expected arrays with names that begin with arg: or aux:, got {len(arrays)} arrays without names"
        )
    params: dict[str, dict[str, Any]] = {"arg": {}, "aux": {}}
    for key, value in arrays.items():
        kind, _, name = key.partition(":")
        if kind not in params or not name:
            raise DamagedFileError(f"{where}: expected names that begin with arg: or aux:, got {key!r}")
        params[kind][name] = value
    return params["arg"], params["aux"]


def joined_params(arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments and auxiliary states under the names that a parameter file has them by."""
    return {f"arg:{name}": value for name, value in arg_params.items()} | {
        f"aux:{name}": value for name, value in aux_params.items()
    }


def checkpoint_file(prefix: str, epoch: int, ending: str) -> str:
    """The name of one of a checkpoint's files.

    Raises:
        TypeError: the epoch is no integer.

    Example:
        >>> checkpoint_file("lenet", 10, "params")
        'lenet-0010.params'
    """
    try:
        return f"{prefix}-{operator.index(epoch):04d}.{ending}"
    except TypeError:
        raise TypeError(f"epoch: expected an integer, got {value_text(epoch)}") from None


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    remove_amp_cast: bool = True,
) -> None:
    """Write `<prefix>-symbol.json` (unless `symbol` is None) and `<prefix>-<epoch, four digits>.params`.

    MXNet 1.x reads both. `remove_amp_cast` is taken for its callers' sake: symbols made here hold no amp_cast.
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    param_name = checkpoint_file(prefix, epoch, "params")
    nd.save(param_name, joined_params(arg_params, aux_params))
    logging.info("checkpoint written: %s", param_name)


def load_params(prefix: str, epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments and auxiliary states of a checkpoint, by name."""
    name = checkpoint_file(prefix, epoch, "params")
    arrays = nd.load(name)
    if not arrays:
        logging.warning("%s: there are no parameters in it", name)
        return {}, {}
    return split_params(arrays, name)


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A checkpoint's symbol, arguments and auxiliary states.

    Example:
        >>> symbol, arg_params, aux_params = mx.model.load_checkpoint("lenet", 10)
    """
    return (sym.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch))
