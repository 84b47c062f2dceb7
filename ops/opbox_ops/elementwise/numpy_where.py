"""mx.np's where, whose condition, x and y broadcast together; each of x and y may be a number.

out = x where condition is not 0, elsewhere y

gx = gout where condition is not 0, summed to x's shape        gy = the other way round
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import ExpressionRule, Pointwise
from ..gradient import backward_node, grad_zero
from ..infer import ShapeList, TypeList, broadcast_shapes
from ..node import Entry, Node
from ..params import Field, Float, NoParams, Params, as_int64
from ..registry import register, register_backward


class WhereScalarParams(Params):
    scalar: Float = Field(0.0, description="The number in place of the other array.")


class WhereScalarsParams(Params):
    x: Float = Field(0.0, description="The value where condition is not 0.")
    y: Float = Field(0.0, description="The value where condition is 0.")


def _shapes(p: Params, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, broadcast_shapes(*ins))


def _types(p: Params, ins: TypeList, outs: TypeList) -> None:
    dtype = outs[0]
    for _ in range(2):
        for i in range(1, len(ins)):
            dtype = ins.merge(i, dtype)
    outs.merge(0, dtype)


def _single(p: Params, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "float32")


def _rule(
    inputs: tuple[str, ...], texts: tuple[str, ...], numbers: Callable[[Any], Mapping[str, float]], summed: bool
) -> ExpressionRule:
    formulas = Pointwise(
        inputs,
        tuple(Expression(text, inputs, tuple(numbers(None))) for text in texts),
        conditions=frozenset(("condition",)),
        summed=summed,
    )

    def rule(p: Any, ins: Any, outs: Any) -> Pointwise:
        values = dict(numbers(p))
        if outs[0].kind in "iu":
            values = {key: as_int64(value) for key, value in values.items()}
        return formulas.with_numbers(values) if values else formulas

    return rule


def _none(p: Any) -> Mapping[str, float]:
    return {}


def _scalar(p: WhereScalarParams | None) -> Mapping[str, float]:
    return {"s": 0.0 if p is None else p.scalar}


def _scalars(p: WhereScalarsParams | None) -> Mapping[str, float]:
    return {"s": 0.0, "t": 0.0} if p is None else {"s": p.x, "t": p.y}


_ROWS = (
    ("_npi_where", NoParams, "x y", "x", "y", "x where condition is not 0, elsewhere y."),
    ("_npi_where_lscalar", WhereScalarParams, "x", "s", "x", "scalar where condition is not 0, elsewhere x."),
    ("_npi_where_rscalar", WhereScalarParams, "y", "y", "s", "y where condition is not 0, elsewhere scalar."),
)
"""Name, parameters, arrays, what is taken where the condition holds, and what elsewhere."""

for _name, _params, _inputs, _where, _elsewhere, _doc in _ROWS:
    _arrays = tuple(_inputs.split())
    _numbers = _none if _params is NoParams else _scalar
    _formula = f"where(condition, {_where}, {_elsewhere})"
    _op = register(_name, _params, inputs=("condition", *_arrays), doc=_doc)
    _backward = register_backward(f"_backward{_name}", _params, outputs=("condition", *_arrays))
    _op.set_attr("FInferShape", _shapes)
    _op.set_attr("FInferType", _types)
    pointwise(_op, _rule(("condition", *_arrays), (_formula,), _numbers, False))
    _parts = [f"where(condition, {'g, 0' if array == _where else '0, g'})" for array in _arrays]
    # Nobody asks for the gradient of the condition, which has none.
    pointwise_backward(_backward, _rule(("g", "condition"), ("0 * g", *_parts), _none, True))

    @_op.gradient
    def _(node: Node, ograds: list[Entry], backward: str = _backward.name) -> list[Entry | None]:
        return [None, *backward_node(backward, node, [ograds[0], node.inputs[0]])[1:]]


scalars = register(
    "_npi_where_scalar2",
    WhereScalarsParams,
    inputs=("condition",),
    doc="The number x where condition is not 0, elsewhere the number y, float32.",
)
scalars.set_attr("FInferShape", _shapes)
scalars.set_attr("FInferType", _single)
scalars.set_attr("FGradient", grad_zero)
pointwise(scalars, _rule(("condition",), ("where(condition, s, t)",), _scalars, False))
