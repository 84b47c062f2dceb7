"""The attribute FExpression: the formulas that an operator computes for every element, as data.

FExpression is a rule `(p, in_types, out_types)` to a `Pointwise`: the formulas of this call, with the numbers that they
take from the parameters. It is None where a call is no formula (a slope that is drawn at random). A backward operator
has an FExpression like a forward one: the gradient of an operator is reached through its FGradient.

    formulas = op.get_attr("FExpression")(params, [float32], [float32])
    formulas.outputs[0].term                      # ("divide", (1, ("add", (1, ("exp", (("negative", ("x",)),))))))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from .language import Expression
from .program import Program, Target, compile_terms

__all__ = ["ExpressionRule", "Pointwise", "fixed", "in_order", "program_of", "working_type"]


@dataclass(frozen=True, eq=False, slots=True)
class Pointwise:
    """The formulas that one call of an operator computes for every element.

    Inputs are broadcast together, and outputs have the shape that comes of it.

    Attributes:
        inputs: the formulas' name for each input, in the operator's order.
        outputs: the formula of each output.
        states: what the call leaves in auxiliary states: formulas by position among the inputs. Every formula reads
            the states as they were before the call.
        numbers: the value of each parameter of the formulas.
        conditions: the inputs that are read as yes or no alone, so that their type does not count.
        start: the inputs whose axes do not line up with the output's last ones: the output's axis at which their
            first axis lies (a slope for each channel: 1).
        summed: whether each value is summed to the shape of its output, which an input had that was repeated: over
            the axes along which it was.
        start_out: as `start`, for outputs that are summed, by position.
        last: the output that is written last: it alone may lie in an input's memory, unless `anywhere`.
        anywhere: whether every output may lie in an input's memory; none of them is an input as it is.
        kernels: what has been made of these formulas, for `operators`: they are looked up for each node of a graph.
    """

    inputs: tuple[str, ...]
    outputs: tuple[Expression, ...]
    states: Mapping[int, Expression] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    conditions: frozenset[str] = frozenset()
    start: Mapping[str, int] = field(default_factory=dict)
    summed: bool = False
    start_out: Mapping[int, int] = field(default_factory=dict)
    last: int = -1
    anywhere: bool = False
    kernels: dict[Any, Any] = field(default_factory=dict, repr=False)

    def with_numbers(self, numbers: Mapping[str, float]) -> Pointwise:
        """The same formulas with other parameters."""
        return Pointwise(
            self.inputs,
            self.outputs,
            self.states,
            numbers,
            self.conditions,
            self.start,
            self.summed,
            self.start_out,
            self.last,
            self.anywhere,
            self.kernels,
        )


ExpressionRule: TypeAlias = "Callable[[Any, Sequence[Any], Sequence[Any]], Pointwise | None]"
"""`(params, input types, output types)` to the formulas; types are NumPy's."""


def fixed(formulas: Pointwise) -> ExpressionRule:
    """The rule of an operator whose formulas do not depend on the call."""
    return lambda p, ins, outs: formulas


def working_type(formulas: Sequence[Expression], types: Sequence[Any]) -> np.dtype[Any]:
    """The element type that formulas are computed in, for arrays (inputs and outputs) of `types`."""
    dtypes = [np.dtype(dtype) for dtype in types]
    if all(dtype.kind in "iub" for dtype in dtypes):
        exact = all(formula.exact for formula in formulas) and dtypes[-1].kind != "b"
        return dtypes[-1] if exact else np.dtype(np.float64)
    return np.dtype(np.float64 if any(dtype == np.float64 for dtype in dtypes) else np.float32)


def program_of(
    formulas: Pointwise,
    ins: Sequence[Any],
    outs: Sequence[Any],
    wanted: tuple[int, ...],
    over: tuple[frozenset[int], ...] | None = None,
) -> tuple[Program, np.dtype[Any]]:
    """The program that writes the states and the outputs `wanted`, and the type it computes in.

    Args:
        ins, outs: the types of the inputs and the outputs.
        wanted: positions of outputs.
        over: for each output of `wanted` as `in_order` has them, the inputs whose memory it may be; None: all that
            the formulas allow.
    """
    wanted = in_order(formulas, wanted)
    states = tuple(formulas.states.items())
    if over is None:
        last, every = formulas.last % len(outs), frozenset(range(len(ins)))
        over = tuple([every if formulas.anywhere or k == last else frozenset() for k in wanted])
    key = (formulas.inputs, formulas.outputs, states, formulas.conditions)
    return _compiled(*key, tuple(ins), tuple(outs), wanted, over)


def in_order(formulas: Pointwise, wanted: Sequence[int]) -> tuple[int, ...]:
    """The outputs in the order they are written: that which is written last comes after all others."""
    last = formulas.last % len(formulas.outputs)
    return tuple(sorted(wanted, key=lambda k: k == last))


@lru_cache(maxsize=4096)
def _compiled(
    inputs: tuple[str, ...],
    outputs: tuple[Expression, ...],
    states: tuple[tuple[int, Expression], ...],
    conditions: frozenset[str],
    ins: tuple[np.dtype[Any], ...],
    outs: tuple[np.dtype[Any], ...],
    wanted: tuple[int, ...],
    over: tuple[frozenset[int], ...],
) -> tuple[Program, np.dtype[Any]]:
    counted = [dtype for name, dtype in zip(inputs, ins, strict=True) if name not in conditions]
    work = working_type([*(formula for _, formula in states), *outputs], [*counted, *outs])
    targets = [Target(formula.term, ins[i] != work, frozenset((i,))) for i, formula in states]
    targets += [Target(outputs[k].term, outs[k] != work, may) for k, may in zip(wanted, over, strict=True)]
    names = {name: i for i, name in enumerate(inputs)}
    program = compile_terms(
        targets,
        names,
        convert=frozenset(name for name, i in names.items() if ins[i] != work),
        masks={name: ins[names[name]].kind == "b" for name in conditions},
        integers=work.kind in "iu",
        singles=work == np.float32,
    )
    return program, work
