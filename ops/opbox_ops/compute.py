"""What a compute function is handed: its inputs and outputs, the context, temporary space.

    @op.compute()
    def _(p, ctx, inputs, outputs):
        (x,), (y,) = inputs, outputs
        ctx.xp.exp(x, out=y)

Outputs are preallocated: a compute writes into them and returns nothing. An output that nobody wants is None. An
output may be the memory of an input only where FInplaceOption allows it. Adding to what is there (`req` add),
casting and targets that are not contiguous are the business of the caller.

Older computes take `(p, ctx, inputs, req, outputs)` and serve `req` themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "Array",
    "ArraySpec",
    "Arrays",
    "CallSpec",
    "Compute",
    "Mode",
    "OpContext",
    "OpReq",
    "Outputs",
    "Reqs",
    "Temp",
    "assign",
    "emit",
    "writing",
]

Array: TypeAlias = Any
"""A numpy.ndarray or a cupy.ndarray."""
Arrays: TypeAlias = Sequence[Array]
Reqs: TypeAlias = "Sequence[OpReq]"


class OpReq(IntEnum):
    """How an output is to be written; the numbers are NNVM's OpReqType."""

    NULL = 0
    WRITE = 1
    INPLACE = 2
    ADD = 3

    @classmethod
    def of(cls, name: str) -> OpReq:
        """From MXNet's names: null, write, inplace, add."""
        return cls[name.upper()]


@dataclass(frozen=True, slots=True)
class Temp:
    """A request for temporary space (FResourceRequest): planned in the arena, contents undefined at each call."""

    shape: tuple[int, ...]
    dtype: Any = np.float32


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array before there is one: `shape`, `dtype`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call of an operator before it runs: `device` ("cpu" or "gpu"), inputs, outputs."""

    device: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]


@dataclass(slots=True)
class Mode:
    """The mode of a run, shared by every step of an executor."""

    is_train: bool = False


@dataclass(slots=True)
class OpContext:
    """Where and how a compute runs.

    Attributes:
        xp: numpy or cupy.
        special: scipy.special or cupyx.scipy.special (erf, gammaln, …).
        random: the device's random source (see backend).
        mode: shared by the executor's steps.
        temp: the arrays asked for by FResourceRequest, in order.
        state: what FCreateOpState made for this node (a backward node sees its forward node's).
        backend: the device's backend.
    """

    xp: Any
    special: Any
    random: Any
    backend: Any
    mode: Mode = field(default_factory=Mode)
    temp: tuple[Array, ...] = ()
    state: Any = None

    @property
    def is_train(self) -> bool:
        """Whether this run trains (dropout drops, batch norm uses the batch)."""
        return self.mode.is_train


Compute: TypeAlias = Callable[[Any, OpContext, Arrays, Reqs, Arrays], None]
Outputs: TypeAlias = Sequence[Any]
"""The arrays to write; None for an output that nobody wants."""


def assign(out: Array, req: OpReq, value: Any) -> None:
    """Write `value` (broadcast and cast) into `out` as `req` says."""
    if req == OpReq.ADD:
        if out.dtype == np.bool_:
            out |= value
        elif getattr(value, "dtype", out.dtype) == out.dtype:
            out += value
        else:
            out[...] = out + value
    elif req != OpReq.NULL:
        out[...] = value


def emit(function: Callable[..., Any], req: OpReq, out: Array, *args: Any) -> None:
    """Run a ufunc-like `function(*args, out=…)` into `out` as `req` says, without a temporary unless adding."""
    if req == OpReq.ADD:
        assign(out, req, function(*args))
    elif req != OpReq.NULL:
        function(*args, out=out, casting="unsafe")


def writing(function: Callable[[Any, OpContext, Arrays, Outputs], None]) -> Compute:
    """`function`, which only writes, as a compute that serves every `req`."""

    @wraps(function)
    def compute(p: Any, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        targets: list[Any] = list(outputs)
        for k, each in enumerate(req):
            if each == OpReq.NULL:
                targets[k] = None
            elif each == OpReq.ADD:
                targets[k] = ctx.xp.empty_like(outputs[k])
        function(p, ctx, inputs, targets)
        for k, each in enumerate(req):
            if each == OpReq.ADD:
                assign(outputs[k], OpReq.ADD, targets[k])

    return compute
