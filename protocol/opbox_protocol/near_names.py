"""Suggests existing names for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["near_names"]

SHORTEST = 3
"""Minimum number of letters to suggest names that begin with them."""


def near_names(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Up to `most` of `known`, whatever their case: those that begin with `name`, shortest first, then similar ones.

    Args:
        cutoff: how similar those must be, from 0 to 1.

    Example:
        >>> near_names("Conv", ["Convolution", "cond", "Convolution_v1"])
        ['Convolution', 'Convolution_v1', 'cond']
    """
    lowered: dict[str, list[str]] = {}
    for one in known:
        lowered.setdefault(one.lower(), []).append(one)
    wanted = name.lower()
    begun = [one for one in lowered if len(wanted) >= SHORTEST and one.startswith(wanted)]
    similar = difflib.get_close_matches(wanted, list(lowered), most, cutoff)
    near = dict.fromkeys([*sorted(begun, key=len), *similar])
    return [one for key in near for one in lowered[key]][:most]
