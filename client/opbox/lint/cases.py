"""Test inputs for an operator: its own `lint_cases`, or those of some usual shapes that it accepts.

A case is a dict: for each input (and auxiliary state) by name a shape, or values; `params` are the operator's keyword
arguments, `types` element types of inputs, `loss` what backward is the derivative of, `gradient: False` says that it is
not the derivative of anything, `keeps: True` that runs depend on those before.

    class SoftmaxProp(mx.operator.CustomOpProp):
        lint_cases = [{"data": (4, 5), "label": [0, 4, 2, 1]}, {"data": (2, 3, 4), "params": {"axis": 1}}]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["USUAL", "Case", "read_cases", "values_of"]

USUAL: tuple[tuple[int, ...], ...] = ((3, 4), (2, 3, 4), (2, 4, 4, 6), (2, 4), (5,), (1,))
"""Shapes to try for an operator without cases."""
_WHOLE = ("label", "index", "indices")
_KEYS: Mapping[str, tuple[Any, str]] = {
    "params": (Mapping, "a dict"),
    "types": (Mapping, "a dict of element types by input"),
    "gradient": (bool, "True or False"),
    "loss": (Callable, "a function of the inputs and outputs by name"),
    "keeps": (bool, "True or False"),
}
"""The fields that a case may have besides inputs."""


@dataclass(frozen=True)
class Case:
    """A case: one set of inputs for an operator.

    Attributes:
        inputs: shapes (tuples) or values by name; those left out are inferred.
        params: keyword arguments of the operator.
        gradient: whether gradients are compared with differences.
        types: element types of inputs that are not float32, by name.
        loss: of arrays by name, inputs' and outputs', the number that backward is the derivative of.
        keeps: whether what an instance keeps from run to run may show in its outputs.
    """

    inputs: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    gradient: bool = True
    types: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    keeps: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that are given."""
        return {name: value if is_shape(value) else np.shape(value) for name, value in self.inputs.items()}


def is_shape(value: Any) -> bool:
    """Return whether a case gives a shape (a tuple of whole numbers), and not values."""
    return isinstance(value, tuple) and all(isinstance(d, int) for d in value)


def read_cases(declared: Any, subject: str) -> list[Case]:
    """The cases that an operator gives.

    Raises:
        ValueError: something that is no list of dicts.
    """
    if not isinstance(declared, list | tuple) or not all(isinstance(entry, Mapping) for entry in declared):
        raise ValueError(f"{subject}: lint_cases: expected a list of dicts of inputs, got {declared!r}")
    cases = []
    for entry in declared:
        inputs = dict(entry)
        further: dict[str, Any] = {}
        for key, (kind, told_kind) in _KEYS.items():
            if key in inputs:
                further[key] = inputs.pop(key)
                if not isinstance(further[key], kind):
                    raise ValueError(f"{subject}: lint_cases: {key}: expected {told_kind}, got {further[key]!r}")
        cases.append(Case(inputs, **further))
    return cases


def values_of(
    case: Case, names: Sequence[str], shapes: Sequence[tuple[int, ...]], whole: Collection[str] = (), seed: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """float64 values of all inputs: the case's own where it has them, else drawn.

    Normal numbers, kept off 0, where many functions have a kink; whole numbers below the first input's last dimension
    for labels and indices, and those in `whole`.
    """
    random = np.random.default_rng(seed)
    classes = shapes[0][-1] if shapes and shapes[0] else 1
    values = {}
    for name, shape in zip(names, shapes, strict=True):
        declared = case.inputs.get(name)
        if declared is not None and not is_shape(declared) and np.shape(declared) == shape:
            values[name] = np.asarray(declared, np.float64)
        elif is_whole(name) or name in whole:
            values[name] = random.integers(0, max(classes, 1), shape).astype(np.float64)
        else:
            drawn = random.normal(size=shape)
            values[name] = drawn + 0.05 * np.sign(drawn)
    return values


def is_whole(name: str) -> bool:
    """Return whether an input of this name holds whole numbers, which have no gradient."""
    return any(word in name for word in _WHOLE)
