"""_while_loop: while cond(s, w) is not zero, and at most max_iterations times: out[n], s = func(s, w), n = n + 1.

The outputs are out, (max_iterations, …), zeros from the n-th row on, and the last s. Inputs are the loop variables s
and whatever else cond and func read; each is counted once. The gradient runs func's backward from the step that was
the last to the first; what only cond reads has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

from opbox_protocol.errors import GraphError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import Field, PositiveInt, Shape
from ..registry import Counted, Variadic, register, register_backward
from .inference import one_element, through
from .stepping import Saved, fill_zero, gradients_of, is_true, loop_body, run_back, runs_subgraphs
from .subgraph import CompiledSubgraph, Compiler, LoopParams


class WhileLoopParams(LoopParams):
    op: ClassVar[str] = "_while_loop"

    max_iterations: PositiveInt = Field(description="The most steps, and the rows of the stacked outputs.")
    cond_input_locs: Shape = Field(description="For each variable of cond, the input that it is.")
    func_input_locs: Shape = Field(description="For each variable of func, the input that it is.")
    func_var_locs: Shape = Field(description="For each loop variable, the variable of func that it is.")

    def check(self) -> None:
        func = self.subgraphs[1]
        self.expect_outputs(0, 1)
        self.expect_outputs(1, self.num_outputs)
        if self.num_out_data + len(self.func_var_locs) != self.num_outputs:
            raise GraphError(
                f"expected num_out_data and the loop variables to be num_outputs, {self.num_outputs}, got "
                f"{self.num_out_data} and {len(self.func_var_locs)}"
            )
        if len(set(self.first_values)) != len(self.first_values):
            raise GraphError(f"func_var_locs: expected an input for each loop variable, got {list(self.first_values)}")
        changing = sorted(func.states.intersection(self.func_var_locs))
        if changing:
            name = func.inputs[changing[0]]
            raise GraphError(f"{name}: expected a free variable as auxiliary state, got a loop variable")

    @cached_property
    def first_values(self) -> tuple[int, ...]:
        """For each loop variable, the input that it begins as."""
        return tuple(self.func_input_locs[variable] for variable in self.func_var_locs)


op = register(
    "_while_loop",
    WhileLoopParams,
    inputs=Variadic(prefix="data", less=2),
    outputs=Counted("num_outputs", alone=True),
)
backward = register_backward("_backward_while_loop", WhileLoopParams)
runs_subgraphs(op, backward)


@op.infer_shape
def _(p: WhileLoopParams, ins: ShapeList, outs: ShapeList) -> None:
    heads = [(k, p.max_iterations if k < p.num_out_data else None) for k in range(p.num_outputs)]
    for _ in range(2):  # what a loop variable's output tells of its input may tell more of the outputs
        through(p, 1, ins, outs, heads=heads)
        _same_states(p, ins, outs)
        one_element(p, 0, ins)


@op.infer_type
def _(p: WhileLoopParams, ins: TypeList, outs: TypeList) -> None:
    for _ in range(2):
        through(p, 1, ins, outs, heads=[(k, None) for k in range(p.num_outputs)])
        _same_states(p, ins, outs)
        through(p, 0, ins, outs)


def _same_states(p: WhileLoopParams, ins: Any, outs: Any) -> None:
    """A loop variable leaves a step as it came in."""
    for j, i in enumerate(p.first_values, p.num_out_data):
        outs.merge(j, ins[i])
        ins.merge(i, outs[j])


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_while_loop", node, [*ograds, *node.inputs, *node.entries()])


def _func(p: WhileLoopParams, call: CallSpec, first: int = 0) -> CompiledSubgraph:
    """func's body for a call whose inputs from `first` on are the operator's own."""
    variables = [call.inputs[first + i] for i in p.routes[1]]
    return loop_body(p, 1, call.nested, variables, p.func_var_locs)


def _cond(p: WhileLoopParams, call: CallSpec) -> CompiledSubgraph:
    nested: Compiler = call.nested
    return nested.compile(p.subgraphs[0], [call.inputs[i] for i in p.routes[0]])


def _saves(p: WhileLoopParams, call: CallSpec) -> int:
    return Saved.bytes(p.max_iterations, _func(p, call).saved_bytes)


def _forward_temps(p: WhileLoopParams, call: CallSpec) -> list[Temp]:
    return [Temp((body.forward_bytes,), "uint8") for body in (_cond(p, call), _func(p, call))]


def _arrays(p: WhileLoopParams, inputs: Arrays) -> list[Any]:
    """For each variable of func, the operator's array; None for loop variables."""
    return [None if k in p.func_var_locs else inputs[i] for k, i in enumerate(p.routes[1])]


@op.compute(temps=_forward_temps, saves=_saves, prepares=True)
def _(p: WhileLoopParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    func = _func(p, ctx.call).forward(ctx, ctx.temp[1], _arrays(p, inputs))
    states = [func.inputs[variable] for variable in p.func_var_locs]
    current = dict(zip(p.first_values, states, strict=True))
    cond = _cond(p, ctx.call).forward(ctx, ctx.temp[0], [current.get(i, inputs[i]) for i in p.routes[0]])
    saved = Saved(ctx, func.saved)
    copy = ctx.xp.copyto
    results = func.outputs[p.num_out_data :]
    stacked = [(outputs[k], func.outputs[k]) for k in range(p.num_out_data) if outputs[k] is not None]

    def call() -> None:
        for i, state in current.items():
            copy(state, inputs[i])
        n = 0
        while n < p.max_iterations:
            cond.step(n)
            if not is_true(ctx, cond.outputs[0]):
                break
            func.step(n)
            saved.keep(n)
            for array, result in stacked:
                copy(array[n, ...], result)
            for state, result in zip(states, results, strict=True):
                copy(state, result)
            n += 1
        saved.note(n)
        for array, _ in stacked:
            array[n:] = 0
        for k, state in enumerate(states, p.num_out_data):
            if outputs[k] is not None:
                copy(outputs[k], state)

    return call


def _backward_temps(p: WhileLoopParams, call: CallSpec) -> list[Temp]:
    return [Temp((_func(p, call, p.num_outputs).backward_bytes,), "uint8")]


@backward.compute(temps=_backward_temps, prepares=True)
def _(p: WhileLoopParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    ograds, own, outs = (
        inputs[: p.num_outputs],
        inputs[p.num_outputs :][: p.num_inputs],
        inputs[p.num_outputs + p.num_inputs :],
    )
    wanted = gradients_of(p, outputs)
    free = {k: wanted[i] for k, i in enumerate(p.routes[1]) if k not in p.func_var_locs and wanted[i] is not None}
    run = _func(p, ctx.call, p.num_outputs).backward(ctx, ctx.temp[0], _arrays(p, own), free)
    saved = Saved(ctx, run.saved)
    copy = ctx.xp.copyto
    slices = [(run.outputs[k], outs[k]) for k in range(p.num_out_data) if run.outputs[k] is not None]
    slices += [(run.heads[k], ograds[k]) for k in range(p.num_out_data) if run.heads[k] is not None]
    flows = [(ograds[k], run.grads[v], run.heads[k]) for k, v in enumerate(p.func_var_locs, p.num_out_data)]
    loop = {i: run.grads[v] for i, v in zip(p.first_values, p.func_var_locs, strict=True)}
    unread = [array for i, array in enumerate(wanted) if array is not None and i not in loop]

    def call() -> None:
        fill_zero(unread)
        run_back(copy, run, saved, saved.noted(), slices, flows)
        for i, grad in loop.items():
            if wanted[i] is not None:
                copy(wanted[i], grad)

    return call
