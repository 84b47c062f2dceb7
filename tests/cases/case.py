"""What a row of the operator table says."""

from __future__ import annotations

import zlib
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
        low, high: values are drawn uniformly from here (integers: low to high inclusive; where a row leaves the
            default, integer types draw from -6 to 6).
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

    @property
    def id(self) -> str:
        """The shape, and what else is told of the values."""
        parts = [str(tuple(self.shape))]
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.kind != "float":
            parts.append(self.kind)
        if self.values is not None:
            parts.append(f"{zlib.crc32(repr(self.values).encode()):08x}")
        elif (self.low, self.high) != (-1.0, 1.0):
            parts.append(f"{self.low}..{self.high}")
        return ":".join(parts)


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
        numeric: whether the gradient is the derivative of the output; False for losses and the like, whose gradient is
            defined otherwise, and where rounding makes a difference quotient useless.
        is_train: the mode of the forward run.
        random: the outputs are random: only shapes, types and seeds are checked here, distributions elsewhere.
        oracle: False where MXNet 1.9.1 cannot run it on the CPU; give the reason in `why`.
        out_shapes: of the outputs, where the inputs' shapes do not settle them (their values do, or `out=` in a call).
        imperative: MXNet cannot bind it in a graph and is called on arrays; what it changes counts as auxiliary states.
        unlike: element types in which MXNet is known to compute otherwise (told in `why` and docs/differences.md): live
            values are not compared in these.
        zero_size: whether it is also run with its first dimension 0.
        settled: whether what is inferred from some of the shapes holds for the row; False where the rule has a default
            for a missing shape (a label's) and the row departs from it.
        assumed: inputs whose shape or type the rules, where nothing tells it, take for granted as MXNet's do (a label,
            the slope of prelu), although this row's is another that the operator takes as well.
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
    settled: bool = True
    numeric: bool = True
    assumed: tuple[str, ...] = ()
    out_shapes: tuple[tuple[int, ...], ...] | None = None
    unlike: tuple[str, ...] = ()
    imperative: bool = False
    why: str = ""

    @property
    def id(self) -> str:
        """A readable, stable name for the test and the recorded values."""
        attrs = ",".join(f"{k}={v}" for k, v in sorted(self.attrs.items()))
        inputs = ";".join(a.id if isinstance(a, Arg) else str(tuple(a)) for a in self.inputs.values())
        mode = "" if self.is_train else "|inference"
        return f"{self.op}[{attrs}|{inputs}{mode}]".replace(" ", "")
