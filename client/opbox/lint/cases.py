"""What an operator is run on: its own `lint_cases`, or shapes that it takes among usual ones.

A case is a dict: for each input (and auxiliary state) by name a shape, or values; `params` are the operator's keyword
arguments, `gradient: False` says that backward is not the derivative of forward.

    class SoftmaxProp(mx.operator.CustomOpProp):
        lint_cases = [{"data": (4, 5), "label": [0, 4, 2, 1]}, {"data": (2, 3, 4), "params": {"axis": 1}}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["USUAL", "Case", "read_cases", "values_of"]

USUAL: tuple[tuple[int, ...], ...] = ((3, 4), (2, 3, 4), (2, 4, 4, 6), (2, 4), (5,), (1,))
"""Shapes that are tried where an operator has no cases of its own."""
_WHOLE = ("label", "index", "indices")


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        inputs: shapes (tuples) or values by name; those left out are inferred.
        params: keyword arguments of the operator.
        gradient: whether gradients are compared with differences; None: as the operator says of itself.
    """

    inputs: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    gradient: bool | None = None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that are given."""
        return {name: each if is_shape(each) else np.shape(each) for name, each in self.inputs.items()}


def is_shape(given: Any) -> bool:
    """Whether a case gives a shape (a tuple of whole numbers), and not values."""
    return isinstance(given, tuple) and all(isinstance(d, int) for d in given)


def read_cases(told: Any, subject: str) -> list[Case]:
    """The cases that an operator gives.

    Raises:
        ValueError: something that is no list of dicts.
    """
    if not isinstance(told, list | tuple) or not all(isinstance(each, Mapping) for each in told):
        raise ValueError(f"{subject}: lint_cases: expected a list of dicts of inputs, got {told!r}")
    found = []
    for each in told:
        inputs = dict(each)
        params, gradient = inputs.pop("params", {}), inputs.pop("gradient", None)
        if not isinstance(params, Mapping):
            raise ValueError(f"{subject}: lint_cases: params: expected a dict, got {params!r}")
        found.append(Case(inputs, params, gradient))
    return found


def values_of(
    case: Case, names: Sequence[str], shapes: Sequence[tuple[int, ...]], seed: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """float64 values of all inputs: the case's own where it has them, else drawn.

    Normal numbers, kept off 0, where many functions have a kink; whole numbers below the first input's last dimension
    for labels and indices.
    """
    random = np.random.default_rng(seed)
    classes = shapes[0][-1] if shapes and shapes[0] else 1
    found = {}
    for name, shape in zip(names, shapes, strict=True):
        given = case.inputs.get(name)
        if given is not None and not is_shape(given) and np.shape(given) == shape:
            found[name] = np.asarray(given, np.float64)
        elif is_whole(name):
            found[name] = random.integers(0, max(classes, 1), shape).astype(np.float64)
        else:
            drawn = random.normal(size=shape)
            found[name] = drawn + 0.05 * np.sign(drawn)
    return found


def is_whole(name: str) -> bool:
    """Whether an input of this name holds whole numbers, which have no gradient."""
    return any(word in name for word in _WHOLE)
