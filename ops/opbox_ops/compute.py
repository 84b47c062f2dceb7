"""The contract of compute functions: what they are handed, what they declare, and how one of several is chosen.

    @op.compute(temps=lambda p, call: [Temp(call.inputs[0].shape, "float32")])
    def _(p, ctx, inputs, outputs):
        (x,), (y,), (square,) = inputs, outputs, ctx.temp
        ctx.xp.multiply(x, x, out=square)
        ctx.xp.exp(square, out=y)

Outputs are preallocated, contiguous, of the inferred shape and dtype: a compute writes into them and returns nothing.
An output that nobody wants is None. An output may be the memory of an input only where FInplaceOption allows it. Inputs
need not be contiguous, and are not written, but for auxiliary states. Adding to what is there (`req` add), casting, and
targets that are not contiguous are the executor's business; a compute that adds on its own declares `accumulates` and
reads `ctx.req`.

An operator may have several computes for a device, each with a level:

    reference   NumPy or CuPy calls: takes every call, is exact, and is what the others are compared with
    library     calls of a vendor's library (oneDNN, cuDNN)
    generated   a kernel made for this very call

A compute answers a call with a `Kernel`, or with None. The highest level is asked first; computes of one level are
asked in the order they were registered. `OPBOX_COMPUTE_LEVEL` (or the argument `level`) caps the levels: "reference"
runs nothing else. `op.compute` makes a compute of one function; where the shapes decide how a call runs, `op.kernel`
makes one of a function that chooses:

    @op.kernel("cpu", level="library")
    def _(p, call):
        product = product_of(p, call)
        return None if product is None else Kernel(partial(bind, product), product.temps)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.errors import BadRequestError

__all__ = [
    "LEVELS",
    "PLAIN",
    "Array",
    "ArraySpec",
    "Arrays",
    "BindRule",
    "CallSpec",
    "ChooseRule",
    "Compute",
    "ComputeFunction",
    "Kernel",
    "Mode",
    "OpContext",
    "OpReq",
    "Outputs",
    "RebindRule",
    "Reusable",
    "SavesRule",
    "Temp",
    "TempsRule",
    "highest_level",
    "rank_of",
]

Array: TypeAlias = Any
"""A numpy.ndarray or a cupy.ndarray."""
Arrays: TypeAlias = Sequence[Array]
Outputs: TypeAlias = Sequence[Any]
"""The arrays to write; None for an output that nobody wants."""

LEVELS = ("reference", "library", "generated")
"""From the one that is always there to the one that is asked first."""
PLAIN = "plain"
"""The layout of an array as NumPy has it: axes in order, row-major."""


class OpReq(IntEnum):
    """The write mode of an output; the numbers are NNVM's OpReqType."""

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
    """A temporary array that a compute asks for: planned in the arena, contents undefined at each call.

    Attributes:
        shape, dtype: the array's.
        only_packed: whether it is used only where it stays from run to run (`Kernel.packs`): elsewhere it is empty.
    """

    shape: tuple[int, ...]
    dtype: Any = np.float32
    only_packed: bool = False

    @property
    def planned(self) -> tuple[int, ...]:
        """The shape where it does not stay."""
        return (0,) if self.only_packed else self.shape


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array before there is one.

    Attributes:
        shape, dtype: settled.
        layout: how its elements lie in memory; a compute for another layout than "plain" says so by `accepts`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: str = PLAIN


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call of an operator before it runs.

    Attributes:
        device: "cpu" or "gpu".
        inputs, outputs: the operator's inputs and outputs, also outputs that nobody reads.
        unwanted: the positions of the outputs that nobody reads.
        nested: for an operator with subgraphs, what compiles them (`control_flow.subgraph.Compiler`).
    """

    device: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    unwanted: frozenset[int] = frozenset()
    nested: Any = None

    def wants(self, output: int) -> bool:
        """Return whether the output at position `output` is wanted; the compute gets None for an unwanted one."""
        return output not in self.unwanted

    @property
    def plain(self) -> bool:
        """True if every array's layout is "plain"."""
        return all(array.layout is PLAIN or array.layout == PLAIN for array in (*self.inputs, *self.outputs))


_NO_CALL = CallSpec("", (), ())


@dataclass(slots=True)
class Mode:
    """The mode of a run, shared by every step of an executor.

    Attributes:
        is_train: whether it trains.
        parameters: a number that is another one whenever packed inputs may have been written to (see `Kernel.packs`);
            None: nobody knows whether they have.
    """

    is_train: bool = False
    parameters: int | None = None


@dataclass(slots=True)
class OpContext:
    """The context of a compute's run: its device, temporary arrays and mode.

    Attributes:
        xp: numpy or cupy.
        special: scipy.special or cupyx.scipy.special (erf, gammaln, …).
        random: the node's random numbers (see backend.random); of a call without a graph, the session's.
        backend: the device's backend.
        mode: shared by the executor's steps.
        temp: the arrays that the kernel's `temps` ask for, in order.
        saved: bytes that forward leaves for backward, as many as the compute's `saves` said; None without a backward.
        state: what FCreateOpState made for this node (a backward node sees its forward node's).
        call: shapes, types and layouts of all inputs and outputs, those that are None too.
        req: how each output is written: NULL where it is None, INPLACE where it is an input's memory, ADD only for a
            compute that declares `accumulates`.
        prepared: what computes keep for calls that are alike, by `call`'s identity: one for the steps of a plan, whose
            equal calls are one object; None elsewhere.
        packs: whether the temporaries that the kernel's `packs` names are the step's own, between runs too.
        alike: what a kernel's `bind` leaves for further steps of a plan with this very context, their arrays in
            each other's memory as those of the first: `(inputs, outputs)` to the call, as `Kernel.bind` would make
            it; None: it is asked again for each.
    """

    xp: Any
    special: Any
    random: Any
    backend: Any
    mode: Mode = field(default_factory=Mode)
    temp: tuple[Array, ...] = ()
    saved: Array = None
    state: Any = None
    call: CallSpec = _NO_CALL
    req: tuple[OpReq, ...] = ()
    prepared: dict[Any, Any] | None = None
    packs: bool = False
    alike: Callable[[Arrays, Outputs], Callable[[], Any]] | None = None

    @property
    def is_train(self) -> bool:
        """True if this run trains (dropout drops, batch norm uses the batch)."""
        return self.mode.is_train


ComputeFunction: TypeAlias = Callable[[Any, OpContext, Arrays, Outputs], Any]
Reusable: TypeAlias = Callable[[Arrays, Outputs], Any]
"""A prepared call that is given its arrays, inputs and outputs, each time.

It is kept and called again long after the context that it was made with has gone. So it holds its temporaries itself
(`ctx.temp`), and with them all that it has given a library a pointer to: nobody else keeps them alive, or uses them.
"""
BindRule: TypeAlias = Callable[[Any, OpContext, Arrays, Outputs], Callable[[], Any]]
RebindRule: TypeAlias = Callable[[Any, OpContext, Arrays, Outputs], Reusable | None]
TempsRule: TypeAlias = Callable[[Any, CallSpec], Sequence[Temp]]
SavesRule: TypeAlias = Callable[[Any, CallSpec], int]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The routine for one call: chosen once, from parameters and shapes; then bound to arrays, as often as needed.

    Attributes:
        bind: `(p, ctx, inputs, outputs)`: returns the call that writes the outputs of these arrays, each time it runs.
        temps: the temporary arrays that it finds in `ctx.temp`.
        packs: pairs (input, temporary): the temporary is a copy of that input alone, packed for the routine. Where
            `ctx.packs` says so, it stays as long as `ctx.mode.parameters` does.
        rebind: for operators that are called one by one: like `bind`, for a call that is given its arrays each time, of
            these shapes and types and in each other's memory where these are. It reads of the context only `xp`,
            `special` and `temp`, and keeps `temp` alive (see `Reusable`). None, also as its answer: there is no such
            call.
        run: `(p, ctx, inputs, outputs)`: writes the outputs at once; None: it runs only when it is bound.
        accumulates: whether it adds on its own where `ctx.req` says ADD.
        saves: for operators with subgraphs: `(p, call)` to the bytes that it leaves in `ctx.saved` for backward.
        level: the level of the compute that chose it, one of LEVELS.
        allocates: why it allocates memory when it runs; empty: it does not.
    """

    bind: BindRule
    temps: tuple[Temp, ...] = ()
    packs: tuple[tuple[int, int], ...] = ()
    rebind: RebindRule | None = None
    run: ComputeFunction | None = None
    accumulates: bool = False
    saves: SavesRule | None = None
    level: str = LEVELS[0]
    allocates: str = ""

    @classmethod
    def of(cls, function: ComputeFunction, **more: Any) -> Kernel:
        """A kernel of a function that writes the outputs at once; `more` is what the class takes besides."""
        return cls(partial(partial, function), run=function, **more)

    @property
    def rank(self) -> int:
        """The position of its level in LEVELS."""
        return LEVELS.index(self.level)

    def __call__(self, p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        """Run it once."""
        if self.run is None:
            self.bind(p, ctx, inputs, outputs)()
        else:
            self.run(p, ctx, inputs, outputs)


ChooseRule: TypeAlias = Callable[[Any, CallSpec], Kernel | None]


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """One way to run an operator on a device: it answers a call with a kernel.

    Attributes:
        rule: `(p, call)` to the kernel that runs the call; None: it does not take this call.
        level: one of LEVELS.
        allocates: why its kernels allocate memory when they run; empty: they do not.
        takes_all: whether it takes every call whose arrays' layout is "plain".
        last: whether it is asked behind all others of its level.
        name: what the self-check of a GPU calls it; empty where it checks nothing (`trust`).
    """

    rule: ChooseRule
    level: str = LEVELS[0]
    allocates: str = ""
    takes_all: bool = False
    last: bool = False
    name: str = ""

    @property
    def rank(self) -> int:
        """The position of its level in LEVELS."""
        return LEVELS.index(self.level)

    def choose(self, p: Any, call: CallSpec) -> Kernel | None:
        """The kernel that runs `call`; None: it does not take this call."""
        kernel = self.rule(p, call)
        return None if kernel is None else replace(kernel, level=self.level, allocates=self.allocates)


def rank_of(level: str | None) -> int:
    """Return the position in LEVELS of `level`, by default of what OPBOX_COMPUTE_LEVEL says.

    Raises:
        BadRequestError: it is none of LEVELS.
    """
    return LEVELS.index(highest_level() if level is None else checked_level(level))


@cache
def highest_level() -> str:
    """The cap that the environment variable OPBOX_COMPUTE_LEVEL sets for this process; the highest level without it.

    Raises:
        BadRequestError: it is none of LEVELS.
    """
    return checked_level(os.environ.get("OPBOX_COMPUTE_LEVEL") or LEVELS[-1])


def checked_level(level: str) -> str:
    """`level`; BadRequestError when it is none of LEVELS."""
    if level not in LEVELS:
        raise BadRequestError(f"compute level: expected one of {', '.join(LEVELS)}, got {level!r}")
    return level
