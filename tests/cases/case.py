"""What a row of the operator table says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FLOATS", "Arg", "Case"]

FLOATS = ("float32", "float64", "float16")


@dataclass(frozen=True)
class Arg:
    """One input of a case.

    Attributes:
        shape: its dimensions.
        low, high: values are drawn uniformly from here (integers: low to high inclusive).
        kind: "float", "int" (whole numbers, in whatever dtype), or "distinct" (all values differ by at least 0.1 of
            the spacing: for max and sorting, whose gradient breaks at ties).
        dtype: a fixed element type; None: the case's.
        values: the values themselves, instead of drawn ones.
        grad: whether a gradient is compared for this input.
    """

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    kind: str = "float"
    dtype: str | None = None
    values: Any = None
    grad: bool = True


@dataclass(frozen=True)
class Case:
    """One row: an operator, its attributes, its inputs.

    Attributes:
        op: canonical name.
        inputs: an `Arg` or a shape for each input by name (auxiliary states too), in the operator's order.
        attrs: parameters, typed or MXNet's strings.
        dtypes: element types that it is run in; the first is the one whose values are recorded from MXNet.
        rtol, atol: against MXNet in float32, when the defaults (1e-5, 1e-6; sums of n products lose about sqrt(n) ulp)
            do not hold; give the reason in `why`.
        grad: whether gradients are compared (False where the operator has none).
        is_train: the mode of the forward run.
        random: the outputs are random: only shapes, types and seeds are checked here, distributions elsewhere.
        oracle: False where MXNet 1.9.1 cannot run it on the CPU; give the reason in `why`.
        zero_size: whether it is also run with its first dimension 0.
    """

    op: str
    inputs: Mapping[str, Arg | tuple[int, ...]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    rtol: float | None = None
    atol: float | None = None
    grad: bool = True
    is_train: bool = True
    random: bool = False
    oracle: bool = True
    zero_size: bool = True
    why: str = ""

    @property
    def id(self) -> str:
        """A readable, stable name for the test and the recorded values."""
        told = ",".join(f"{k}={v}" for k, v in sorted(self.attrs.items()))
        shapes = ";".join(str(tuple(a.shape if isinstance(a, Arg) else a)) for a in self.inputs.values())
        return f"{self.op}[{told}|{shapes}]".replace(" ", "")
