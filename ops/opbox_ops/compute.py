"""What a compute function is handed: the request kinds, the context, and writing as requested.

    @op.compute()
    def _(p, ctx, inputs, req, outputs):
        (x,), (y,) = inputs, outputs
        emit(ctx.xp.exp, req[0], y, x)

Outputs are preallocated; a compute writes into them and never returns. With NULL it writes nothing, with WRITE it
overwrites, with INPLACE it overwrites memory that it also reads as an input (only pairs that FInplaceOption allows),
with ADD it adds to what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Array", "Arrays", "Compute", "Mode", "OpContext", "OpReq", "Reqs", "Temp", "assign", "emit"]

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
