"""Operators made of formulas: the attribute FExpression, and a compute that runs the formulas.

pointwise(op, fixed(Pointwise(("x",), (Expression("x / (1 + abs(x))", ("x",)),))))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import Call, as_one, nothing
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, RebindRule, Reusable, Temp, TempsRule
from ..operator import Op
from .evaluate import FormulaKernel, scratch
from .pointwise import ExpressionRule, Pointwise, in_order, program_of
from .program import Program
from .summing import stretched_axes, sum_to

__all__ = ["kernel_of", "pointwise", "prepare", "rebinding", "temps_for", "temps_for_all"]


def pointwise(op: Op, rule: ExpressionRule, temps: TempsRule | None = None) -> Op:
    """Give `op` its formulas and a compute that runs them; every call must have formulas.

    Args:
        op, rule: the operator and its FExpression.
        temps: the temporary space; by default what is enough whichever outputs turn out to be wanted.
    """
    op.set_attr("FExpression", rule)

    @op.compute(temps=temps or temps_for(rule), prepares=True, rebind=rebinding(rule))
    def compute(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        prepared = ctx.prepared
        if prepared is not None and (rule, id(ctx)) not in prepared:
            prepared[rule, id(ctx)] = ctx
        elif prepared is not None and ctx.alike is None:
            # The second step with this context: it pays to have something ready for the third.
            formulas: Pointwise = prepared[rule, id(ctx.call)]
            if not formulas.summed and outputs[formulas.last % len(outputs)] is not None:
                ctx.alike = _for_alike(formulas, ctx, inputs, outputs)
        return prepare(rule, p, ctx, inputs, outputs)

    return op


def prepare(rule: ExpressionRule, p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    """A call that writes the outputs that are not None, and the states, by the formulas of `rule`."""
    prepared = ctx.prepared
    formulas = None if prepared is None else prepared.get((rule, id(ctx.call)))
    if formulas is None:
        ins = [array.dtype for array in inputs]
        formulas = rule(p, ins, [ins[0] if array is None else array.dtype for array in outputs])
        assert formulas is not None
        if prepared is not None:
            prepared[rule, id(ctx.call)] = formulas
    if formulas.summed:
        return _summed(formulas, ctx, inputs, outputs)
    return _fused(formulas, ctx, inputs, outputs)


def _for_alike(
    formulas: Pointwise, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[Arrays, Outputs], Call] | None:
    """Makes the calls of further steps with this context, whose arrays lie in each other's memory as these do."""
    kernel, wanted = _kernel_for(formulas, ctx, inputs, outputs)
    between = kernel.between(outputs[wanted[-1]].shape, formulas.numbers, ctx.temp)
    if between is None:
        return None
    arrays = [*inputs, *[outputs[k] for k in wanted]]
    one_type = kernel.work.kind == "f" and all(array.dtype == kernel.work for array in arrays)
    call, sweeps = kernel.call, kernel.sweeps
    if sweeps is None and not (formulas.states or formulas.start or len(outputs) > 1):
        return lambda inputs, outputs: call([*inputs, *between, *outputs], one_type)
    shape, constants = outputs[wanted[-1]].shape, kernel.constants(formulas.numbers)

    def bind(inputs: Arrays, outputs: Outputs) -> Call:
        targets = [*[inputs[i] for i in formulas.states], *[outputs[k] for k in wanted]]
        arrays = _aligned(formulas, inputs, len(shape))
        by_pieces = call([*arrays, *between, *targets], one_type)
        return by_pieces if sweeps is None else sweeps.switching(shape, arrays, targets, constants, by_pieces)

    return bind


def rebinding(rule: ExpressionRule) -> RebindRule:
    """The rule `rebind` of a compute that calls `prepare`."""

    def rule_for_arrays(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Reusable | None:
        ins = [array.dtype for array in inputs]
        formulas = rule(p, ins, [ins[0] if array is None else array.dtype for array in outputs])
        if formulas is None or formulas.summed or all(array is None for array in outputs):
            return None
        kernel, wanted = _kernel_for(formulas, ctx, inputs, outputs)
        shape = outputs[wanted[-1]].shape
        call = kernel.reusable(shape, formulas.numbers, ctx.temp)
        if call is None or not (formulas.states or formulas.start or len(outputs) > 1):
            return call

        def run(inputs: Arrays, outputs: Outputs) -> None:
            targets = [*[inputs[i] for i in formulas.states], *[outputs[k] for k in wanted]]
            call(_aligned(formulas, inputs, len(shape)), targets)

        return run

    return rule_for_arrays


def temps_for(rule: ExpressionRule) -> Callable[[Any, CallSpec], list[Temp]]:
    """The temporary space of a compute that calls `prepare`, whichever outputs turn out to be wanted."""

    def temps(p: Any, call: CallSpec) -> list[Temp]:
        formulas = rule(p, [array.dtype for array in call.inputs], [array.dtype for array in call.outputs])
        assert formulas is not None
        if not formulas.summed:
            shape = np.broadcast_shapes(*(array.shape for array in call.outputs))
            return _scratch(formulas, call, shape, _subsets(len(call.outputs)))
        shape = _common_shape(formulas, call.inputs, call.outputs)
        summed = [
            array
            for k, array in enumerate(call.outputs)
            if _is_summed(formulas, k, array, shape) and formulas.outputs[k].term not in formulas.inputs
        ]
        wide = [accumulation_type(array.dtype) for array in call.outputs]
        return [
            *_summed_scratch(formulas, call, shape),
            Temp(shape if summed else (0,), np.result_type(*wide)),
            *(
                Temp(array.shape if dtype != array.dtype else (0,), dtype)
                for array, dtype in zip(call.outputs, wide, strict=True)
            ),
        ]

    return temps


def temps_for_all(formulas: Pointwise, call: CallSpec) -> list[Temp]:
    """The temporary space of formulas that are not summed and whose outputs are all wanted."""
    return _scratch(formulas, call, call.outputs[0].shape, [tuple(range(len(call.outputs)))])


def _subsets(count: int) -> list[tuple[int, ...]]:
    return [wanted for size in range(count, -1, -1) for wanted in combinations(range(count), size)]


def _scratch(
    formulas: Pointwise, call: CallSpec, shape: tuple[int, ...], choices: Sequence[tuple[int, ...]]
) -> list[Temp]:
    """Scratch that is enough for each of `choices` of outputs; none where no formula needs any."""
    ins, outs = [array.dtype for array in call.inputs], [array.dtype for array in call.outputs]
    rows = [scratch(*program_of(formulas, ins, outs, wanted), shape, call.device) for wanted in choices]
    return _largest(rows) if any(temp.shape[0] for temps in rows for temp in temps) else []


def _summed_scratch(formulas: Pointwise, call: CallSpec, shape: tuple[int, ...]) -> list[Temp]:
    """Scratch for the formulas one after the other, each written in the type that it is summed in."""
    ins, rows = [array.dtype for array in call.inputs], []
    for k, array in enumerate(call.outputs):
        outs = [ins[0]] * len(call.outputs)
        summed = _is_summed(formulas, k, array, shape)
        outs[k] = accumulation_type(array.dtype) if summed else array.dtype
        rows.append(scratch(*program_of(formulas, ins, outs, (k,)), shape, call.device))
    return _largest(rows)


def _largest(rows: Sequence[list[Temp]]) -> list[Temp]:
    """Room for each of `rows`; of the type of those that need some."""
    rows = [temps for temps in rows if any(temp.shape[0] for temp in temps)] or rows
    return [
        Temp((max(temps[i].shape[0] for temps in rows), max(temps[i].shape[1] for temps in rows)), rows[0][i].dtype)
        for i in range(2)
    ]


@cache
def kernel_of(program: Program, work: np.dtype[Any], xp: Any, special: Any) -> FormulaKernel:
    """The kernel of a program, one for all who ask."""
    return FormulaKernel(program, work, xp, special)


def _fused(formulas: Pointwise, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    """All formulas in one kernel."""
    kernel, wanted = _kernel_for(formulas, ctx, inputs, outputs)
    targets = [outputs[k] for k in wanted]
    if formulas.states:
        targets = [*[inputs[i] for i in formulas.states], *targets]
    if not targets:
        return nothing
    shape = targets[-1].shape
    return kernel.bind(shape, _aligned(formulas, inputs, len(shape)), targets, formulas.numbers, ctx.temp)


def _kernel_for(
    formulas: Pointwise, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> tuple[FormulaKernel, Sequence[int]]:
    """The kernel of all formulas, and the outputs that it writes after the states, in its order."""
    ins = [array.dtype for array in inputs]
    outs = [ins[0] if array is None else array.dtype for array in outputs]
    wanted = tuple([k for k, array in enumerate(outputs) if array is not None])
    last, share = formulas.last % len(outputs), ctx.xp.may_share_memory
    wanted = in_order(formulas, wanted) if len(wanted) > 1 else wanted
    over = tuple(
        [
            tuple([i for i, array in enumerate(inputs) if share(array, outputs[k])])
            if formulas.anywhere or k == last
            else ()
            for k in wanted
        ]
    )
    key = (*ins, *outs, wanted, over, ctx.xp)
    known: tuple[FormulaKernel, Sequence[int]] | None = formulas.kernels.get(key)
    if known is None:
        program = program_of(formulas, ins, outs, wanted, tuple(map(frozenset, over)))
        known = formulas.kernels[key] = kernel_of(*program, ctx.xp, ctx.special), wanted
    return known


def _summed(formulas: Pointwise, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    """The formulas one after the other, each summed to the shape of its output."""
    shape, temp = _common_shape(formulas, inputs, outputs), ctx.temp
    last = formulas.last % len(outputs)
    calls: list[Call] = []
    for k in (*(k for k in range(len(outputs)) if k != last), last):
        out, targets = outputs[k], [None] * len(outputs)
        if out is None:
            continue
        if not _is_summed(formulas, k, out, shape):
            targets[k] = out.reshape(shape)
            calls.append(_fused(formulas, ctx, inputs, targets))
            continue
        name = formulas.outputs[k].term
        value = inputs[formulas.inputs.index(str(name))] if name in formulas.inputs else None
        if value is None or value.shape != shape:
            planned = len(temp) > 2 and temp[2].shape == shape
            value = targets[k] = temp[2] if planned else ctx.xp.empty(shape, accumulation_type(out.dtype))
            calls.append(_fused(formulas, ctx, inputs, targets))
        target = _align(out, len(shape), formulas.start_out.get(k))
        wide = temp[3 + k].reshape(target.shape) if len(temp) > 3 and temp[3 + k].size else None
        calls.append(partial(sum_to, ctx.xp, value, target, wide))

    return as_one(calls)


def _is_summed(formulas: Pointwise, k: int, out: Array | ArraySpec, shape: tuple[int, ...]) -> bool:
    return bool(stretched_axes(_shape(out, len(shape), formulas.start_out.get(k)), shape))


def _common_shape(formulas: Pointwise, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape that all inputs and outputs broadcast to."""
    ndim = max(len(array.shape) for array in (*inputs, *outputs) if array is not None)
    read = [_shape(array, ndim, formulas.start.get(n)) for n, array in zip(formulas.inputs, inputs, strict=True)]
    written = [_shape(a, ndim, formulas.start_out.get(k)) for k, a in enumerate(outputs) if a is not None]
    return np.broadcast_shapes(*read, *written)


def _shape(array: Any, ndim: int, start: int | None) -> tuple[int, ...]:
    """The array's shape with its first axis at the output's axis `start`."""
    shape: tuple[int, ...] = array.shape
    return shape if start is None or len(shape) + start >= ndim else shape + (1,) * (ndim - start - len(shape))


def _align(array: Array, ndim: int, start: int | None) -> Array:
    shape = _shape(array, ndim, start)
    return array if shape == array.shape else array.reshape(shape)


def _aligned(formulas: Pointwise, inputs: Arrays, ndim: int) -> Arrays:
    if not formulas.start:
        return inputs
    return [_align(a, ndim, formulas.start.get(name)) for name, a in zip(formulas.inputs, inputs, strict=True)]
