"""_cond: then_branch(…) where pred is not zero, else_branch(…) where it is: only one of them runs.

Inputs are what the three subgraphs read, each counted once. Both branches give outputs of the same shapes and types.
The gradient is that of the branch that ran; what only the other one reads has a gradient of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import Field, PositiveInt, Shape
from ..registry import Counted, Variadic, register, register_backward
from .inference import one_element, through
from .stepping import Saved, fill_zero, gradients_of, is_true, runs_subgraphs
from .subgraph import CompiledSubgraph, Compiler, SubgraphParams

BRANCHES = (1, 2)
"""The subgraphs that are branches: then and else."""


class CondParams(SubgraphParams):
    op: ClassVar[str] = "_cond"

    num_outputs: PositiveInt = Field(description="Outputs of either branch.")
    cond_input_locs: Shape = Field(description="For each variable of pred, the input that it is.")
    then_input_locs: Shape = Field(description="For each variable of then_branch, the input that it is.")
    else_input_locs: Shape = Field(description="For each variable of else_branch, the input that it is.")

    def check(self) -> None:
        self.expect_outputs(0, 1)
        for branch in BRANCHES:
            self.expect_outputs(branch, self.num_outputs)


op = register(
    "_cond",
    CondParams,
    inputs=Variadic(prefix="data", less=3),
    outputs=Counted("num_outputs", alone=True),
)
backward = register_backward("_backward_cond", CondParams)
runs_subgraphs(op, backward)


@op.infer_shape
def _(p: CondParams, ins: ShapeList, outs: ShapeList) -> None:
    one_element(p, 0, ins)
    for _ in range(2):  # what one branch tells, the other may need
        for branch in BRANCHES:
            through(p, branch, ins, outs, heads=[(k, None) for k in range(p.num_outputs)])


@op.infer_type
def _(p: CondParams, ins: TypeList, outs: TypeList) -> None:
    through(p, 0, ins, outs)
    for _ in range(2):
        for branch in BRANCHES:
            through(p, branch, ins, outs, heads=[(k, None) for k in range(p.num_outputs)])


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_cond", node, [*ograds, *node.inputs, *node.entries()])


def _body(p: CondParams, call: CallSpec, number: int, first: int = 0) -> CompiledSubgraph:
    """A subgraph's body for a call whose inputs from `first` on are the operator's own."""
    nested: Compiler = call.nested
    route = p.routes[number]
    return nested.compile(
        p.subgraphs[number],
        [call.inputs[first + i] for i in route],
        lent_heads=frozenset(range(p.subgraphs[number].num_outputs)),
        wrt=frozenset(k for k, i in enumerate(route) if i in nested.gradients and number in BRANCHES),
    )


def _saves(p: CondParams, call: CallSpec) -> int:
    return Saved.bytes(1, max(_body(p, call, branch).saved_bytes for branch in BRANCHES))


def _forward_temps(p: CondParams, call: CallSpec) -> list[Temp]:
    most = max(_body(p, call, number).forward_bytes for number in range(3))
    return [Temp((most,), "uint8")]


@op.compute(temps=_forward_temps, saves=_saves, prepares=True)
def _(p: CondParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    runs = []
    for number, route in enumerate(p.routes):
        body = _body(p, ctx.call, number)
        runs.append(body.forward(ctx, ctx.temp[0][: body.forward_bytes], [inputs[i] for i in route]))
    copy = ctx.xp.copyto
    keeping = [Saved(ctx, run.saved) for run in runs]

    def call() -> None:
        runs[0].step(0)
        branch = 1 if is_true(ctx, runs[0].outputs[0]) else 2
        run, saved = runs[branch], keeping[branch]
        run.step(0)
        saved.keep(0)
        saved.note(branch)
        for array, result in zip(outputs, run.outputs, strict=False):
            if array is not None:
                copy(array, result)

    return call


def _backward_temps(p: CondParams, call: CallSpec) -> list[Temp]:
    most = max(_body(p, call, branch, p.num_outputs).backward_bytes for branch in BRANCHES)
    return [Temp((most,), "uint8")]


@backward.compute(temps=_backward_temps, prepares=True)
def _(p: CondParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    ograds, own, outs = (
        inputs[: p.num_outputs],
        inputs[p.num_outputs :][: p.num_inputs],
        inputs[p.num_outputs + p.num_inputs :],
    )
    wanted = gradients_of(p, outputs)
    grads = [array for array in wanted if array is not None]
    runs = {}
    for branch in BRANCHES:
        body, route = _body(p, ctx.call, branch, p.num_outputs), p.routes[branch]
        arrays = {k: wanted[i] for k, i in enumerate(route) if wanted[i] is not None}
        run = body.backward(ctx, ctx.temp[0][: body.backward_bytes], [own[i] for i in route], arrays)
        slots = [(run.outputs[k], outs[k]) for k in range(p.num_outputs) if run.outputs[k] is not None]
        slots += [(run.heads[k], ograds[k]) for k in range(p.num_outputs) if run.heads[k] is not None]
        runs[branch] = run, Saved(ctx, run.saved), slots
    header = runs[1][1]
    copy = ctx.xp.copyto

    def call() -> None:
        fill_zero(grads)
        run, saved, slots = runs[header.noted()]
        saved.put_back(0)
        for slot, array in slots:
            copy(slot, array)
        run.step(0)

    return call
