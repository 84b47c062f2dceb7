"""Formulas of several operators as those of one call: what a plan pass makes of steps that read one another.

    y = x * w, z = relu(y + b)   ->   z = maximum(x * w + b, 0), and y where somebody else reads it

Each value is computed by the same functions in the same order as before, in one type, so that results are the same to
the last bit; what lies between is in no array, but rounded as its array would have rounded it where that has 16 bits. A
value that two read is computed once (`program`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from ..compute import CallSpec, Temp
from ..operator import Op
from ..params import Params
from .functions import FUNCTIONS, ROUNDING
from .language import Expression, Term, count_leaves, substitute
from .operators import pointwise, temps_for_all
from .pointwise import Pointwise

__all__ = ["FUSED", "FusedParams", "Member", "Source", "combine", "size"]


class FusedParams(Params):
    formulas: Any


FUSED = Op(
    "_fused",
    FusedParams,
    lambda p: p.formulas.inputs,
    lambda p: [f"output{k}" for k in range(len(p.formulas.outputs))],
    (),
    "Several operators that compute element by element, as one.",
)


def _temps(p: FusedParams, call: CallSpec) -> list[Temp]:
    return temps_for_all(p.formulas, call)


pointwise(FUSED, lambda p, ins, outs: p.formulas, _temps)

Source: TypeAlias = "tuple[int, int]"
"""The source of an operator's input: (member, output), or (-1, input of the whole)."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the operators.

    Attributes:
        inputs, outputs: as in its `Pointwise`.
        conditions, start: likewise, by position among the inputs.
        sources: where each input comes from.
        types: of the outputs, by name.
    """

    inputs: tuple[str, ...]
    outputs: tuple[Expression, ...]
    conditions: frozenset[int]
    start: tuple[tuple[int, int], ...]
    sources: tuple[Source, ...]
    types: tuple[str, ...]


def size(formulas: Pointwise) -> tuple[int, tuple[int, ...]]:
    """Names and numbers in the longest of the formulas, and how often one of them names each input at most."""
    counts = [count_leaves(formula.term) for formula in formulas.outputs]
    return max(map(Counter.total, counts)), tuple([max([c[name] for c in counts]) for name in formulas.inputs])


def combine(
    members: Sequence[tuple[Pointwise, tuple[Source, ...], tuple[str, ...]]], outputs: Sequence[Source]
) -> Pointwise:
    """The formulas of `outputs`, each an output of one of `members`, which come after those that they read.

    A member has its formulas, where its inputs come from, and the names of its outputs' types. Two inputs of the whole
    are two where one lines up differently, or is read as yes or no alone.
    """
    rows, numbers = [], {}
    for m, (formulas, sources, types) in enumerate(members):
        position = {name: i for i, name in enumerate(formulas.inputs)}
        rows.append(
            Member(
                formulas.inputs,
                formulas.outputs,
                frozenset([position[name] for name in formulas.conditions]),
                tuple([(position[name], axis) for name, axis in formulas.start.items()]),
                sources,
                types,
            )
        )
        numbers.update({f"p{m}_{name}": value for name, value in formulas.numbers.items()})
    whole = _combined(tuple(rows), tuple(outputs))
    return whole.with_numbers(numbers) if numbers else whole


@lru_cache(maxsize=1024)
def _combined(members: tuple[Member, ...], outputs: tuple[Source, ...]) -> Pointwise:
    values: dict[Source, Term] = {}
    conditions: set[str] = set()
    start: dict[str, int] = {}
    count = 1 + max(source[1] for member in members for source in member.sources if source[0] < 0)
    parameters: list[str] = []
    for m, member in enumerate(members):
        names: dict[str, Term] = {}
        for i, (name, source) in enumerate(zip(member.inputs, member.sources, strict=True)):
            names[name] = _as_read(values[source], members, source) if source[0] >= 0 else f"x{source[1]}"
            if source[0] < 0 and i in member.conditions:
                conditions.add(f"x{source[1]}")
        start |= {f"x{member.sources[i][1]}": axis for i, axis in member.start if member.sources[i][0] < 0}
        mine = dict.fromkeys([name for formula in member.outputs for name in formula.parameters])
        parameters += [f"p{m}_{name}" for name in mine]
        renamed: Mapping[str, Term] = names | {name: f"p{m}_{name}" for name in mine}
        for k, formula in enumerate(member.outputs):
            values[m, k] = substitute(formula.term, renamed)
    inputs = tuple(f"x{i}" for i in range(count))
    formulas = tuple(Expression.of(values[source], inputs, tuple(parameters)) for source in outputs)
    bare = any(not isinstance(formula.term, tuple) for formula in formulas)
    return Pointwise(inputs, formulas, conditions=frozenset(conditions), start=start, anywhere=not bare)


def _as_read(value: Term, members: Sequence[Member], source: Source) -> Term:
    """The value as others read it: rounded to the type of its array, where that is none of those computed in."""
    rounding = ROUNDING.get(members[source[0]].types[source[1]])
    mask = isinstance(value, tuple) and FUNCTIONS[value[0]].mask  # 0 or 1
    return value if rounding is None or mask else (rounding, (value,))
