"""Checks of the names that a module is given for its inputs, and descriptions from what `bind` is given."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..io import DataDesc

__all__ = ["check_input_names", "parse_data_desc"]

_PARAMETER_ENDINGS = ("_weight", "_bias", "_gamma", "_beta")


def check_input_names(symbol: Any, names: Sequence[str], kind: str, throw: bool) -> None:
    """Warn, or with `throw` raise ValueError, when the symbol lacks one of the names."""
    arguments = symbol.list_arguments()
    wanted = kind == "fixed_param"
    candidates = [name for name in arguments if name.endswith(_PARAMETER_ENDINGS) == wanted]
    for name in names:
        if name in arguments:
            continue
        told = (
            f"Module: {kind}_names has {name!r}, which is no argument of the symbol: expected some of "
            f"{', '.join(candidates)}"
        )
        if throw:
            raise ValueError(told)
        warnings.warn(told, stacklevel=4)


def _check_match(names: Sequence[str], shapes: Sequence[DataDesc], kind: str, throw: bool) -> None:
    if sorted(names) == sorted(desc.name for desc in shapes):
        return
    told = (
        f"{kind}_shapes: expected the names of {kind}_names, {', '.join(names) or 'none'}, "
        f"got {', '.join(desc.name for desc in shapes) or 'none'}"
    )
    if throw:
        raise ValueError(told)
    warnings.warn(told, stacklevel=5)


def parse_data_desc(
    data_names: Sequence[str], label_names: Sequence[str], data_shapes: Any, label_shapes: Any
) -> tuple[list[DataDesc], list[DataDesc] | None]:
    """Descriptions of data and labels, checked against the module's names.

    Raises:
        ValueError: data that the module does not know, or lacks.
    """
    data = _described(data_shapes)
    _check_match(data_names, data, "data", True)
    # Some iterators give [] where there are no labels; MXNet binds without labels then, as with None.
    labels = _described(label_shapes) if label_shapes else None
    if labels is not None:
        _check_match(label_names, labels, "label", False)
    return data, labels


def _described(shapes: Any) -> list[DataDesc]:
    return [one if isinstance(one, DataDesc) else DataDesc(*one) for one in shapes]
