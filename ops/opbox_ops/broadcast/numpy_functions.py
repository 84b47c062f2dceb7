"""mx.np's comparisons, which give bool, its division, which gives real numbers, and its arithmetic of mixed types.

The shapes of two arrays broadcast. A real number and an integer or bool give the real number's type.

    lhs (2, 1), rhs (3,) -> (2, 3)        data, a number -> data's shape

Division of integers by integers is float32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..elementwise.scalar import ScalarParams
from ..expression.binary_functions import ARRAYS, TABLE, BinaryRow, gradient_rule, gradients, reads
from ..expression.family import backward, backward_with, derivative, forward, gradient_formulas
from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..gradient import grad_zero
from ..infer import DType, ShapeList, TypeList, all_same_float, broadcast_shapes
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward

_COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
}

_ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "true_divide",
    "mod": "mod",
    "power": "power",
}
"""mx.np's names of the rows of `binary_functions`."""


def _shapes(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, broadcast_shapes(*ins))


def _bool(p: Any, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "bool")
    known = next((dtype for dtype in ins if dtype is not None), None)
    for i in range(len(ins)):
        ins.merge(i, known)


def _real(p: Any, ins: TypeList, outs: TypeList) -> None:
    """The widest real type among the inputs', or float32; an input of unknown type is of the other's."""
    narrow = outs[0] is not None and outs[0] != np.float32  # then no input is an integer
    _fill(ins, outs[0] if narrow else None)
    if all(dtype is not None for dtype in ins):
        outs.merge(0, _widest(ins) or "float32")


def _mixed(p: Any, ins: TypeList, outs: TypeList) -> None:
    """The widest real type among the inputs', or the type of both; an input of unknown type is of the other's."""
    _fill(ins, outs[0])
    if all(dtype is not None for dtype in ins):
        widest = _widest(ins)
        for dtype in ins if widest is None else (widest,):
            outs.merge(0, dtype)


def _fill(ins: TypeList, otherwise: DType) -> None:
    known = next((dtype for dtype in ins if dtype is not None), otherwise)
    for i, dtype in enumerate(ins):
        if dtype is None:
            ins.merge(i, known)


def _widest(ins: TypeList) -> DType:
    """The widest real type among types; None where there is none."""
    real = [dtype for dtype in ins if dtype is not None and dtype.kind not in "iub"]
    return max(real, key=lambda dtype: dtype.itemsize, default=None)


def _number(p: ScalarParams, dtype: np.dtype[Any]) -> Mapping[str, float]:
    return {"s": p.scalar}


for _name, _sign in _COMPARISONS.items():
    _doc = f"Whether lhs {_sign} rhs, as bool; the shapes are broadcast."
    _op = register(f"_npi_{_name}", NoParams, inputs=("lhs", "rhs"), doc=_doc)
    forward(_op, Expression(f"a {_sign} b", ARRAYS), shapes=_shapes, types=_bool).set_attr("FGradient", grad_zero)
    _op = register(f"_npi_{_name}_scalar", ScalarParams, doc=f"Whether data {_sign} scalar, as bool.")
    forward(_op, Expression(f"x {_sign} s", ("x",), ("s",)), numbers=_number, types=_bool)
    _op.set_attr("FGradient", grad_zero)

_op = register("_npi_logical_not", NoParams, inputs=("x",), doc="Whether x is 0, as bool.")
forward(_op, Expression("x == 0", ("x",)), types=_bool).set_attr("FGradient", grad_zero)

for _row in TABLE:
    if _row.suffix in _ARITHMETIC:
        _op = register(
            f"_npi_{_ARITHMETIC[_row.suffix]}", NoParams, inputs=("lhs", "rhs"), doc=f"{_row.doc}, of mx.np."
        )
        _rule = _real if _row.suffix == "div" else _mixed
        forward(_op, Expression(_row.formula, ARRAYS), shapes=_shapes, types=_rule)
        _op.set_attr("FGradient", gradient_rule(f"_backward_broadcast_{_row.suffix}", reads(gradients(_row))))


def _data_entry(node: Node) -> Entry:
    return node.inputs[0]


_op = register("_npi_true_divide_scalar", ScalarParams, doc="data / scalar as real numbers.")
forward(_op, Expression("x / s", ("x",), ("s",)), numbers=_number, types=_real)
_op.set_attr("FGradient", backward_with("_backward_div_scalar", []))
_op = register("_npi_rtrue_divide_scalar", ScalarParams, doc="scalar / data as real numbers.")
forward(_op, Expression("s / x", ("x",), ("s",)), numbers=_number, types=_real)
_op.set_attr("FGradient", backward_with("_backward_rdiv_scalar", [_data_entry]))

_LDEXP = ("2 ** b", "(a * log(2)) * 2 ** b")
_ANGLE = ("b / (square(a) + square(b))", "-a / (square(a) + square(b))")
_SIGN = ("copysign(1, a) * copysign(1, b)", "g * 0")
_REAL = (
    BinaryRow("arctan2", ("x1", "x2"), "arctan2", "arctan2(a, b)", _ANGLE, "The angle of the point (x2, x1)"),
    BinaryRow("copysign", ("lhs", "rhs"), "copysign", "copysign(a, b)", _SIGN, "lhs with the sign of rhs"),
    BinaryRow("ldexp", ("lhs", "rhs"), "ldexp", "a * 2 ** b", _LDEXP, "lhs times 2 to the power of rhs"),
)
"""Functions of real numbers that mx.np alone has; in place of aliases the names of their inputs."""


def _of_numbers(text: str, data: str) -> str:
    """A formula of a and b as one of x and the number s: `data` says which of them x is."""
    return re.sub(r"\b[ab]\b", lambda match: "x" if match[0] == data else "s", text)


for _row in _REAL:
    _op = register(f"_npi_{_row.name}", NoParams, inputs=_row.aliases, doc=f"{_row.doc}; the shapes are broadcast.")
    forward(_op, Expression(_row.formula, ARRAYS), shapes=_shapes, types=all_same_float)
    _pairs = gradients(_row)
    _arrays = reads(_pairs)
    _op.set_attr("FGradient", gradient_rule(f"_backward_npi_{_row.name}", _arrays))
    _backward = register_backward(f"_backward_npi_{_row.name}", NoParams, outputs=_row.aliases)
    pointwise_backward(_backward, gradient_formulas(_pairs, _arrays, None, summed=True))
    for _data, _prefix in (("a", ""), ("b", "r")):
        _name = f"{_prefix}{_row.name}_scalar"
        _sentence = _row.doc.replace(_row.aliases["ab".index(_data)], "data")
        _sentence = _sentence.replace(_row.aliases[1 - "ab".index(_data)], "scalar")
        _op = register(f"_npi_{_name}", ScalarParams, doc=f"{_sentence}.")
        forward(
            _op, Expression(_of_numbers(_row.formula, _data), ("x",), ("s",)), numbers=_number, types=all_same_float
        )
        assert _row.derivatives is not None
        _pair = derivative(_of_numbers(str(_row.derivatives["ab".index(_data)]), _data), ("x",), ("s",))
        backward(f"_backward_npi_{_name}", ScalarParams, [_pair], inputs=_pair[0].arrays, numbers=_number)
        _op.set_attr("FGradient", backward_with(f"_backward_npi_{_name}", [_data_entry] * (len(_pair[0].arrays) - 1)))
