"""mx.np's products of arrays: matmul, tensordot and einsum.

_npi_matmul              a (…, m, k), b (…, k, n) -> (…, m, n); the leading axes broadcast, a vector loses its axis
_npi_tensordot           the sum over a's axes `a_axes_summed` and b's `b_axes_summed`, in pairs
_npi_tensordot_int_axes  the sum over a's last `axes` axes and b's first
_npi_einsum              what `subscripts` says: "bhqk,bhkd->bqhd"

The gradient of an operand is the contraction of gout and the other operands to its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import FLOATS, ShapeList, TypeList, all_same_type, canonical_axis, not_bool, show_shape
from ..node import Entry, Node
from ..params import Count, Field, Int, NonNegativeInt, NoParams, Params, Shape
from ..registry import Op, Variadic, register, register_backward
from ..slots import Inputs
from .contraction import Contraction, Labels, contraction

Notation: TypeAlias = "tuple[tuple[Labels, ...], Labels]"
"""The labels of the operands' axes and of the result's."""
Rule: TypeAlias = Callable[[Any, "tuple[int, ...]"], Notation]
"""`(params, ranks of the operands)` to the notation."""


class TensordotParams(Params):
    a_axes_summed: Shape = Field(description="The axes of a that are summed over.")
    b_axes_summed: Shape = Field(description="The axes of b, in the same order.")


class TensordotIntParams(Params):
    axes: NonNegativeInt = Field(description="How many axes are summed over: a's last and b's first.")


class EinsumParams(Params):
    num_args: Count = Field(description="How many arrays.")
    subscripts: str = Field("", description="A letter for each axis of each array, and those of the result behind ->.")
    optimize: Int = Field(0, description="Accepted; arrays are multiplied from left to right.")


def _matmul(p: NoParams, ranks: tuple[int, ...]) -> Notation:
    a, b = ranks
    if not a or not b:
        raise ShapeError("expected arrays of at least 1 dimension, got (): multiply scalars by *")
    batch = tuple(f"batch{i}" for i in range(max(a, b) - 2, 0, -1))
    rows, columns = ("m",) * (a > 1), ("n",) * (b > 1)
    left = batch[max(len(batch) - a + 2, 0) :] if a > 2 else ()
    right = batch[max(len(batch) - b + 2, 0) :] if b > 2 else ()
    return ((*left, *rows, "k"), (*right, "k", *columns)), (*batch, *rows, *columns)


def _tensordot(p: TensordotParams, ranks: tuple[int, ...]) -> Notation:
    if len(p.a_axes_summed) != len(p.b_axes_summed):
        raise ShapeError(
            f"a_axes_summed, b_axes_summed: expected as many axes of each, got {p.a_axes_summed} and {p.b_axes_summed}"
        )
    a = [f"a{i}" for i in range(ranks[0])]
    b = [f"b{i}" for i in range(ranks[1])]
    for i, (left, right) in enumerate(zip(p.a_axes_summed, p.b_axes_summed, strict=True)):
        a[canonical_axis(left, ranks[0], "a_axes_summed")] = f"summed{i}"
        b[canonical_axis(right, ranks[1], "b_axes_summed")] = f"summed{i}"
    out = (*(one for one in a if one[0] == "a"), *(one for one in b if one[0] == "b"))
    return (tuple(a), tuple(b)), out


def _tensordot_int(p: TensordotIntParams, ranks: tuple[int, ...]) -> Notation:
    a, b = ranks
    if p.axes > min(a, b):
        raise ShapeError(f"axes: expected at most {min(a, b)} for arrays of {a} and {b} dimensions, got {p.axes}")
    summed = tuple(f"summed{i}" for i in range(p.axes))
    left, right = tuple(f"a{i}" for i in range(a - p.axes)), tuple(f"b{i}" for i in range(p.axes, b))
    return ((*left, *summed), (*summed, *right)), (*left, *right)


def _einsum(p: EinsumParams, ranks: tuple[int, ...]) -> Notation:
    return _read(p.subscripts, ranks)


@lru_cache(maxsize=256)
def _read(subscripts: str, ranks: tuple[int, ...]) -> Notation:
    """The notation that subscripts say."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ParamError(
            f"_npi_einsum: subscripts: expected {len(ranks)} terms with commas between, got {subscripts!r}"
        )
    operands = tuple(_labels(subscripts, term, rank) for term, rank in zip(terms, ranks, strict=True))
    every = [label for labels in operands for label in labels]
    rest = tuple(dict.fromkeys(label for label in every if label.startswith("...")))
    rest = tuple(sorted(rest, key=lambda label: -int(label[3:])))
    if arrow:
        before, dots, after = right.partition("...")
        out = (*before, *(rest if dots else ()), *after)
    else:
        out = (*rest, *sorted(label for label in set(every) - set(rest) if every.count(label) == 1))
    unknown = [label for label in out if label not in every]
    if unknown or len(set(out)) != len(out):
        raise ParamError(
            f"_npi_einsum: subscripts: expected a result of letters that the arrays have, each once, got {subscripts!r}"
        )
    return operands, out


def _labels(subscripts: str, term: str, rank: int) -> Labels:
    before, dots, after = term.partition("...")
    if not (before + after).isalpha() and before + after:
        raise ParamError(f"_npi_einsum: subscripts: expected letters, commas, ... and ->, got {subscripts!r}")
    rest = rank - len(before) - len(after)
    if rest < 0 or (rest and not dots):
        raise ShapeError(f"subscripts {subscripts!r}: expected {len(before + after)} axes for {term!r}, got {rank}")
    return (*before, *(f"...{i}" for i in range(rest, 0, -1)), *after)


def _sizes(
    notation: Notation, shapes: Sequence[tuple[int, ...]], repeats: Callable[[str], bool]
) -> tuple[tuple[str, int], ...]:
    """The length of each label, -1 where it is unknown; axes of length 1 are repeated where `repeats` says so."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(notation[0], shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            other = sizes.get(label, -1)
            alike = size < 0 or other < 0 or size == other or (repeats(label) and 1 in (size, other))
            if not alike:
                listed = " and ".join(map(show_shape, shapes))
                raise ShapeError(f"expected axes of one length where they are multiplied and summed, got {listed}")
            known = size < 0 and other == 1  # what is unknown may be longer
            sizes[label] = -1 if known and repeats(label) else max(size, other)
    return tuple(sizes.items())


def _declare(
    name: str, params: type[Params], inputs: Inputs, rule: Rule, doc: str, repeats: Callable[[str], bool], *, real: bool
) -> Op:
    """Register a product and its gradient."""
    op = register(name, params, inputs=inputs, doc=doc)
    outputs = () if isinstance(inputs, Variadic) else inputs
    backward = register_backward(f"_backward{name}", params, **({"outputs": outputs} if outputs else {}))

    @op.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        shapes = [shape for shape in ins if shape is not None]
        if len(shapes) == len(ins):
            notation = rule(p, tuple(map(len, shapes)))
            sizes = dict(_sizes(notation, shapes, repeats))
            outs.merge(0, tuple(sizes[label] for label in notation[1]))

    @op.infer_type
    def _(p: Any, ins: TypeList, outs: TypeList) -> None:
        all_same_type(p, ins, outs)
        for i in range(len(ins)):
            if real:
                ins.only(i, *FLOATS)
        not_bool(ins)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(backward.name, node, [ograds[0], *node.inputs])

    def planned(p: Any, specs: Sequence[Any], target: int | None, dtype: Any, out: Any) -> Contraction:
        """The contraction to the result (`target` None), or from (gout, *operands) to an operand's gradient."""
        shapes = tuple(tuple(spec.shape) for spec in (specs if target is None else specs[1:]))
        operands, result = notation = rule(p, tuple(map(len, shapes)))
        sizes = _sizes(notation, shapes, repeats)
        if target is None:
            return contraction(operands, result, sizes, shapes, out, dtype)
        others = tuple(i for i in range(len(operands)) if i != target)
        labels = (result, *(operands[i] for i in others))
        arrays = (tuple(specs[0].shape), *(shapes[i] for i in others))
        return contraction(labels, operands[target], sizes, arrays, shapes[target], dtype)

    def temps(p: Any, call: CallSpec) -> Sequence[Temp]:
        out = call.outputs[0]
        return planned(p, call.inputs, None, out.dtype, tuple(out.shape)).temps

    @op.compute(temps=temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        out = outputs[0]
        planned(p, inputs, None, out.dtype, out.shape)(ctx.xp, inputs, out, ctx.temp)

    def backward_temps(p: Any, call: CallSpec) -> Sequence[Temp]:
        wanted = [i for i in range(len(call.outputs)) if call.wants(i)]
        return [temp for i in wanted for temp in planned(p, call.inputs, i, call.inputs[0].dtype, None).temps]

    @backward.compute(temps=backward_temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        begin = 0
        for i, out in enumerate(outputs):
            if out is not None:
                rule_ = planned(p, inputs, i, out.dtype, None)
                end = begin + len(rule_.temps)
                arrays = [inputs[0], *(array for k, array in enumerate(inputs[1:]) if k != i)]
                rule_(ctx.xp, arrays, out, ctx.temp[begin:end])
                begin = end

    return op


_declare(
    "_npi_matmul",
    NoParams,
    ("a", "b"),
    _matmul,
    "Products of matrices; the axes before the last two broadcast.",
    lambda label: label.startswith("batch"),
    real=True,
)
_declare(
    "_npi_tensordot",
    TensordotParams,
    ("a", "b"),
    _tensordot,
    "The sum of products over pairs of axes.",
    lambda label: False,
    real=True,
)
_declare(
    "_npi_tensordot_int_axes",
    TensordotIntParams,
    ("a", "b"),
    _tensordot_int,
    "The sum of products over a's last axes and b's first.",
    lambda label: False,
    real=True,
)
_declare(
    "_npi_einsum",
    EinsumParams,
    Variadic(),
    _einsum,
    "Sums of products, as Einstein's notation says.",
    lambda label: True,
    real=False,
)
