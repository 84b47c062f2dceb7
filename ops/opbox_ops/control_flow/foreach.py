"""_foreach: for t = 0 … T - 1: out[t], s(t + 1) = body(x[t], s(t), w); the outputs are out (T, …) and the last states.

Inputs are the data x, each (T, …), the states s(0), and whatever else the body reads, w; `in_data_locs`,
`in_state_locs` and `remain_locs` say which variable of the body each is. The gradient runs the body's backward from
the last step to the first: gx[t] and gs(t) are written by step t, gw is the sum over the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

from opbox_protocol.errors import GraphError, ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import Field, Shape
from ..registry import Counted, Variadic, register, register_backward
from .inference import through
from .stepping import Saved, fill_zero, gradients_of, loop_body, rows, run_back, runs_subgraphs, sliceable
from .subgraph import CompiledSubgraph, LoopParams


class ForeachParams(LoopParams):
    op: ClassVar[str] = "_foreach"

    in_state_locs: Shape = Field(description="For each state, the variable of the body that it is.")
    in_data_locs: Shape = Field(description="For each data input, the variable of the body that its slices are.")
    remain_locs: Shape = Field(description="For each further input, the variable of the body that it is.")

    def check(self) -> None:
        body, states = self.subgraphs[0], len(self.in_state_locs)
        self.expect_outputs(0, self.num_outputs)
        if self.num_out_data + states != self.num_outputs:
            raise GraphError(
                f"expected num_out_data and the states to be num_outputs, {self.num_outputs}, got {self.num_out_data} "
                f"and {states}"
            )
        if not self.in_data_locs:
            raise GraphError("in_data_locs: expected one data input or more, got none")
        changing = sorted(body.states.intersection((*self.in_data_locs, *self.in_state_locs)))
        if changing:
            name = body.inputs[changing[0]]
            raise GraphError(f"{name}: expected a free variable as auxiliary state, got data or a state of the loop")

    @cached_property
    def first_state(self) -> int:
        """The number of the input that is the first state."""
        return len(self.in_data_locs)

    @cached_property
    def free(self) -> tuple[tuple[int, int], ...]:
        """The input and the body's variable of all that is neither data nor state."""
        first = self.first_state + len(self.in_state_locs)
        return tuple((first + k, variable) for k, variable in enumerate(self.remain_locs))


op = register(
    "_foreach",
    ForeachParams,
    inputs=Variadic(prefix="data", less=1),
    outputs=Counted("num_outputs", alone=True),
)
backward = register_backward("_backward_foreach", ForeachParams)
runs_subgraphs(op, backward)


@op.infer_shape
def _(p: ForeachParams, ins: ShapeList, outs: ShapeList) -> None:
    data = range(p.first_state)
    steps = _steps(p, ins, outs)
    for i in data:
        shape = ins[i]
        if shape is not None:
            if not shape:
                raise ShapeError("expected an axis of steps, got a scalar ()", side="input", index=i)
            ins.merge(i, (steps, *shape[1:]))
    heads = [(k, steps if k < p.num_out_data else None) for k in range(p.num_outputs)]
    for _ in range(2):  # what a state's output tells of its input may tell more of the outputs
        through(p, 0, ins, outs, sliced=data, heads=heads)
        _same_states(p, ins, outs)


@op.infer_type
def _(p: ForeachParams, ins: TypeList, outs: TypeList) -> None:
    for _ in range(2):
        through(p, 0, ins, outs, heads=[(k, None) for k in range(p.num_outputs)])
        _same_states(p, ins, outs)


def _steps(p: ForeachParams, ins: ShapeList, outs: ShapeList) -> int:
    known = [(ins[i], i) for i in range(p.first_state)]
    sizes = {shape[0]: i for shape, i in known if shape and shape[0] >= 0}
    sizes |= {shape[0]: -1 for shape in outs[: p.num_out_data] if shape and shape[0] >= 0}
    if len(sizes) > 1:
        listed = " and ".join(map(str, sorted(sizes)))
        raise ShapeError(f"expected data of one number of steps (the first axis), got {listed}")
    return next(iter(sizes), -1)


def _same_states(p: ForeachParams, ins: Any, outs: Any) -> None:
    """A state leaves a step as it came in."""
    for j in range(len(p.in_state_locs)):
        outs.merge(p.num_out_data + j, ins[p.first_state + j])
        ins.merge(p.first_state + j, outs[p.num_out_data + j])


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_foreach", node, [*ograds, *node.inputs, *node.entries()])


def _body(p: ForeachParams, call: CallSpec, first: int = 0) -> CompiledSubgraph:
    """The body for a call whose inputs from `first` on are the operator's own."""
    specs = call.inputs[first : first + len(p.routes[0])]
    variables = [rows(specs[i]) if i < p.first_state else specs[i] for i in p.routes[0]]
    return loop_body(p, 0, call.nested, variables, p.in_state_locs, p.in_data_locs)


def _saves(p: ForeachParams, call: CallSpec) -> int:
    return Saved.bytes(call.inputs[0].shape[0], _body(p, call).saved_bytes)


def _forward_temps(p: ForeachParams, call: CallSpec) -> list[Temp]:
    return [Temp((_body(p, call).forward_bytes,), "uint8")]


def _arrays(p: ForeachParams, inputs: Arrays) -> list[Any]:
    """For each variable of the body, the operator's array; None for slices and states."""
    arrays: list[Any] = [None] * len(p.routes[0])
    for i, variable in p.free:
        arrays[variable] = inputs[i]
    return arrays


@op.compute(temps=_forward_temps, saves=_saves, prepares=True)
def _(p: ForeachParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    run = _body(p, ctx.call).forward(ctx, ctx.temp[0], _arrays(p, inputs))
    saved = Saved(ctx, run.saved)
    copy, steps, first = ctx.xp.copyto, inputs[0].shape[0], p.first_state
    data = [(run.inputs[variable], sliceable(inputs[i])) for i, variable in enumerate(p.in_data_locs)]
    states = [run.inputs[variable] for variable in p.in_state_locs]
    results = run.outputs[p.num_out_data :]
    stacked = [(outputs[k], run.outputs[k]) for k in range(p.num_out_data) if outputs[k] is not None]

    def call() -> None:
        for j, state in enumerate(states):
            copy(state, inputs[first + j])
        for t in range(steps):
            for slot, array in data:
                copy(slot, array[t])
            run.step(t)
            saved.keep(t)
            for array, result in stacked:
                copy(array[t, ...], result)
            for state, result in zip(states, results, strict=True):
                copy(state, result)
        for k, state in enumerate(states, p.num_out_data):
            if outputs[k] is not None:
                copy(outputs[k], state)

    return call


def _backward_temps(p: ForeachParams, call: CallSpec) -> list[Temp]:
    return [Temp((_body(p, call, p.num_outputs).backward_bytes,), "uint8")]


@backward.compute(temps=_backward_temps, prepares=True)
def _(p: ForeachParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    count, first = len(p.routes[0]), p.first_state
    ograds, own, outs = inputs[: p.num_outputs], inputs[p.num_outputs :][:count], inputs[p.num_outputs + count :]
    body = _body(p, ctx.call, p.num_outputs)
    wanted = gradients_of(p, outputs)
    free = {variable: wanted[i] for i, variable in p.free if wanted[i] is not None}
    run = body.backward(ctx, ctx.temp[0], _arrays(p, own), free)
    saved = Saved(ctx, run.saved)
    copy, steps = ctx.xp.copyto, own[0].shape[0]
    slices = [(run.inputs[v], sliceable(own[i])) for i, v in enumerate(p.in_data_locs) if run.inputs[v] is not None]
    slices += [(run.outputs[k], outs[k]) for k in range(p.num_out_data) if run.outputs[k] is not None]
    slices += [(run.heads[k], ograds[k]) for k in range(p.num_out_data) if run.heads[k] is not None]
    data = [(sliceable(wanted[i]), run.grads[v]) for i, v in enumerate(p.in_data_locs) if wanted[i] is not None]
    flows = [(ograds[k], run.grads[v], run.heads[k]) for k, v in enumerate(p.in_state_locs, p.num_out_data)]

    def after(t: int) -> None:
        for array, grad in data:
            copy(array[t, ...], grad)

    def call() -> None:
        fill_zero(free.values())
        run_back(copy, run, saved, steps, slices, flows, after)
        for j, (_, grad, _) in enumerate(flows):
            if wanted[first + j] is not None:
                copy(wanted[first + j], grad)

    return call
