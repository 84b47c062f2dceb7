"""Values of a symbol's arguments and states, from a list or a dict, as arrays on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ndarray import NDArray, array

__all__ = ["as_array", "by_name", "parse_aux_states", "parse_location"]


def parse_location(sym: Any, location: Any, ctx: Any, dtype: Any) -> dict[str, Any]:
    """Arrays by argument name; `dtype` "asnumpy" keeps each value's own type.

    Raises:
        ValueError: the names, or their number, are not the symbol's.
    """
    return _arrays("arguments", sym.list_arguments(), location, ctx, dtype)


def parse_aux_states(sym: Any, aux_states: Any, ctx: Any, dtype: Any) -> dict[str, Any] | None:
    """Arrays by name of auxiliary state; None for None.

    Raises:
        ValueError: the names, or their number, are not the symbol's.
    """
    if aux_states is None:
        return None
    return _arrays("auxiliary states", sym.list_auxiliary_states(), aux_states, ctx, dtype)


def _arrays(what: str, names: Sequence[str], values: Any, ctx: Any, dtype: Any) -> dict[str, Any]:
    return {name: as_array(value, ctx, dtype) for name, value in by_name(what, names, values).items()}


def by_name(what: str, names: Sequence[str], values: Any) -> dict[str, Any]:
    """Values by name, from a dict or from a sequence in the order of the names.

    Raises:
        ValueError: the names, or their number, are others.
    """
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise ValueError(f"{what}: expected {', '.join(names) or 'none'}, got {', '.join(values) or 'none'}")
        return {name: values[name] for name in names}
    if len(values) != len(names):
        raise ValueError(f"{what}: expected {len(names)} ({', '.join(names)}), got {len(values)}")
    return dict(zip(names, values, strict=True))


def as_array(value: Any, ctx: Any, dtype: Any) -> Any:
    """An NDArray as it is; anything else as a new one of `dtype`."""
    if isinstance(value, NDArray):
        return value
    values = np.asarray(value)
    return array(values, ctx=ctx, dtype=values.dtype if isinstance(dtype, str) and dtype == "asnumpy" else dtype)
