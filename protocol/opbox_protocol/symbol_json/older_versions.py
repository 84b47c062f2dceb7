"""Moves attributes that files before MXNet 1.0 gave an operator to its variables: `weight_lr_mult`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..mxnet import LEGACY_KEYS, is_hidden
from .nodes import Maker, N

__all__ = ["hand_down", "split_attributes"]


def split_attributes(attrs: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """An operator's own attributes, and those that old files gave it for its variables."""
    if not attrs or not any(key.endswith(LEGACY_KEYS) for key in attrs):
        return attrs, {}
    own: dict[str, str] = {}
    handed: dict[str, str] = {}
    for key, value in attrs.items():
        if not key.endswith(LEGACY_KEYS) or is_hidden(key):
            own[key] = value
        elif key in LEGACY_KEYS:
            own.setdefault(f"__{key}__", value)
        else:
            handed[key] = value
    return own, handed


def hand_down(
    maker: Maker[N], handed: Mapping[str, str], names: Sequence[str], inputs: Sequence[tuple[N, int]]
) -> dict[str, str]:
    """Give `weight_lr_mult` on an operator to its variable `weight`, as `__lr_mult__`; what no variable takes.

    It takes the place of the variable's own, as in MXNet.
    """
    return {key: value for key, value in handed.items() if not _taken(maker, key, value, names, inputs)}


def _taken(maker: Maker[N], key: str, value: str, names: Sequence[str], inputs: Sequence[tuple[N, int]]) -> bool:
    for hidden in LEGACY_KEYS:
        argument = key.removesuffix(f"_{hidden}")
        if argument != key and argument in names:
            return maker.annotate(inputs[names.index(argument)][0], f"__{hidden}__", value)
    return False
