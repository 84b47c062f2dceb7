"""Shared by the loop operators: one step's slice of an array, and the record that forward saves for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..compute import Array, ArraySpec, OpContext, Outputs
from ..operator import Op
from .subgraph import CompiledSubgraph, Compiler, LoopParams, Run, SubgraphParams, carried

__all__ = [
    "HEADER",
    "Saved",
    "fill_zero",
    "gradients_of",
    "is_true",
    "loop_body",
    "rows",
    "run_back",
    "runs_subgraphs",
    "sliceable",
]

HEADER = 64
"""The bytes at the beginning of what is saved: how many steps ran, or which branch, as an int64."""


def rows(spec: ArraySpec) -> ArraySpec:
    """A step's slice of an array: without the first axis, and at least with one, as in MXNet."""
    return ArraySpec(spec.shape[1:] or (1,), spec.dtype)


def sliceable(array: Array) -> Array:
    """An array whose slices have one axis at least."""
    return array[:, None] if array is not None and array.ndim == 1 else array


def runs_subgraphs(op: Op, backward: Op) -> None:
    """Declare an operator of SubgraphParams and its gradient as such."""
    op.set_attr("TSubgraphs", True)
    backward.set_attr("TSubgraphs", True)
    # The states of operators inside the subgraphs, by node and step: forward makes them, backward finds them.
    op.set_attr("FCreateOpState", lambda p, ctx, shapes, dtypes: {})
    op.set_attr("FMutateInputs", lambda p: sorted(p.states))


def gradients_of(p: SubgraphParams, outputs: Outputs) -> list[Array]:
    """Return the gradient array of each input; None for unwanted gradients and for auxiliary states."""
    gradients = iter(outputs)
    return [None if i in p.states else next(gradients) for i in range(p.num_inputs)]


def fill_zero(arrays: Iterable[Array]) -> None:
    """Zeros into all."""
    for array in arrays:
        array[...] = 0


def loop_body(
    p: LoopParams,
    number: int,
    nested: Compiler,
    variables: Sequence[ArraySpec],
    states: Sequence[int],
    slices: Sequence[int] = (),
) -> CompiledSubgraph:
    """Subgraph `number`, compiled as the body of a loop.

    Args:
        p: the operator's parameters.
        number: which of its subgraphs.
        nested: compiles it.
        variables: shape and type of each of its variables.
        states: the variables that a step passes on to the next one.
        slices: those that each step gets another slice of.
    """
    subgraph = p.subgraphs[number]
    wanted = frozenset(k for k, i in enumerate(p.routes[number]) if i in nested.gradients)
    heads = {p.num_out_data + j: variable for j, variable in enumerate(states)}
    real = frozenset(k for k, spec in enumerate(variables) if spec.dtype.kind in "fV")
    return nested.compile(
        subgraph,
        variables,
        own=frozenset((*slices, *states)),
        lent=frozenset(slices),
        lent_heads=frozenset(range(p.num_out_data)),
        wrt=carried(subgraph, wanted, heads, real) if wanted else wanted,
    )


def run_back(
    copy: Callable[..., Any],
    run: Run,
    saved: Saved,
    steps: int,
    slices: Sequence[tuple[Array, Array]],
    flows: Sequence[tuple[Array, Array, Array]],
    after: Callable[[int], None] | None = None,
) -> None:
    """Run a loop's backward from the last step to the first.

    Args:
        copy: the device's copyto.
        run: the body's backward.
        saved: what forward has kept.
        steps: how many steps forward took.
        slices: arrays of the body, and the arrays whose slices a step needs in them.
        flows: for each state the gradient of the operator's output, the body's gradient of the state as it came in,
            and that of the state as it left; the last two are None where no gradient flows.
        after: called with a step's number when it has run.
    """
    for ograd, grad, _ in flows:
        if grad is not None:
            copy(grad, ograd)
    for t in reversed(range(steps)):
        saved.put_back(t)
        for slot, array in slices:
            copy(slot, array[t])
        for ograd, grad, head in flows:
            # A state's gradient as it leaves is the next step's as it came in; after the last step, the output's.
            if head is None:
                continue
            if grad is not None:
                copy(head, grad)
            elif t + 1 == steps:
                copy(head, ograd)
            else:
                head[...] = 0
        run.step(t)
        if after is not None:
            after(t)


def is_true(ctx: OpContext, decision: Array) -> bool:
    """Return whether an array of one element is not zero: waits for the device."""
    return bool(ctx.backend.get(decision).reshape(-1)[0])


class Saved:
    """The values that a loop's forward saves for its backward: a header, and a row for each step.

    Args:
        ctx: the operator's; without `saved`, nothing is kept.
        run: `Run.saved` of the body that is saved, or put back.
    """

    def __init__(self, ctx: OpContext, run: Array) -> None:
        self._copy, self._backend, self._run = ctx.xp.copyto, ctx.backend, run
        self._rows: Array = None
        self._header: Array = None
        if ctx.saved is not None:
            self._header = ctx.saved[:8].view("int64")
            if run.size:
                saved = ctx.saved[HEADER:]
                self._rows = saved[: saved.size // run.size * run.size].reshape(-1, run.size)

    @staticmethod
    def bytes(steps: int, size: int) -> int:
        """Return the number of bytes to save for `steps` steps of `size` bytes."""
        return HEADER + steps * size

    def keep(self, t: int) -> None:
        """Keep what step `t` has left."""
        if self._rows is not None:
            self._copy(self._rows[t], self._run)

    def put_back(self, t: int) -> None:
        """Give a backward run what step `t` had left."""
        if self._rows is not None:
            self._copy(self._run, self._rows[t])

    def note(self, number: int) -> None:
        """Write the header."""
        if self._header is not None:
            self._header[...] = number

    def noted(self) -> int:
        """The header."""
        return int(self._backend.get(self._header)[0])
