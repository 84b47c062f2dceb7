"""Nested lists of arrays or symbols as flat lists, and back: what bodies of loops take and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Layout", "flatten", "pair", "regroup"]

Layout: TypeAlias = "int | list[Layout] | None"
"""How values were nested: None for one value, a number for one with several outputs, a list for lists."""


def flatten(value: Any, kind: type, what: str, split: Callable[[Any], Sequence[Any]] | None = None) -> tuple[Any, Any]:
    """The values inside nested lists and tuples in order, and the layout that `regroup` restores.

    Args:
        value: a value, or nested lists of them.
        kind: what a value is: NDArray or Symbol.
        what: names the argument in errors.
        split: takes a value apart into its outputs.

    Raises:
        TypeError: something else is among them.

    Example:
        >>> flatten([x, [y]], NDArray, "data")
        ([x, y], [None, [None]])
    """
    if isinstance(value, kind):
        parts = [value] if split is None else list(split(value))
        return (parts, len(parts)) if len(parts) != 1 else (parts, None)
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"{what}: expected a {kind.__name__} or nested lists of them, got {value!r} of type {type(value).__name__}"
        )
    flat: list[Any] = []
    layout: list[Layout] = []
    for item in value:
        values, inner = flatten(item, kind, what, split)
        flat += values
        layout.append(inner)
    return flat, layout


def regroup(values: Sequence[Any], layout: Layout) -> Any:
    """Flat values in the lists that they came in."""
    rest = list(values)

    def take(layout: Layout) -> Any:
        if layout is None:
            return rest.pop(0)
        if isinstance(layout, int):
            taken = rest[:layout]
            del rest[:layout]
            return taken
        return [take(inner) for inner in layout]

    return take(layout)


def pair(value: Any, what: str) -> tuple[Any, Any]:
    """The two values that a loop's function has returned.

    Raises:
        ValueError: it has returned something else; `what` is the function, for the error.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        got = f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
        raise ValueError(f"{what}: expected it to return two values, got {got}")
    return value[0], value[1]
