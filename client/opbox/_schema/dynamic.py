"""Operators whose inputs or outputs no declaration tells: the catalogue says "dynamic", and the rule stands here.

A rule is a function of `value`, which gives a parameter's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbox_protocol.errors import MXNetError

__all__ = ["aux_indices", "input_names", "output_names", "tensors"]

Value = Callable[[str], Any]


def _split(value: Value) -> list[str]:
    indices = value("indices") or ()
    begins = len(indices) + (0 if tuple(indices[:1]) == (0,) else 1)
    count = value("sections") or begins
    return ["output"] if count == 1 else [f"output{i}" for i in range(count)]


OUTPUTS: dict[str, Callable[[Value], Sequence[str]]] = {"_split_v2": _split}
INPUTS: dict[str, Callable[[Value], Sequence[str]]] = {}
AUX: dict[str, Callable[[Value], Sequence[int]]] = {}
TENSORS: dict[str, Sequence[str]] = {}


def output_names(op: str, value: Value) -> list[str]:
    """The outputs' suffixes of operator `op`."""
    return list(_rule(OUTPUTS, op, "outputs")(value))


def input_names(op: str, value: Value) -> list[str]:
    """The inputs' names of operator `op`."""
    return list(_rule(INPUTS, op, "inputs")(value))


def aux_indices(op: str, value: Value) -> list[int]:
    """Positions of the auxiliary states among the inputs of `op`."""
    return list(AUX[op](value)) if op in AUX else []


def tensors(op: str) -> list[str]:
    """Every input that `op` may have."""
    return list(TENSORS.get(op, ()))


def _rule(table: dict[str, Any], op: str, what: str) -> Any:
    if op not in table:
        raise MXNetError(f"{op}: this client cannot tell its {what}: expected an operator of its own catalogue")
    return table[op]
