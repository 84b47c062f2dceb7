"""mx.np's functions of one array that tell NaN and infinity, replace them, and round to decimals.

_npi_isnan, _npi_isinf, _npi_isfinite, _npi_isposinf, _npi_isneginf: bool, of data's shape
_npi_nan_to_num: data with numbers in place of NaN and the infinities; gdata = gout where data is finite, elsewhere 0
_npi_around: data rounded to `decimals` decimals, halves to the even neighbour; gdata = 0
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..expression.family import backward, forward
from ..expression.language import Expression
from ..gradient import grad_use_in, grad_zero
from ..infer import TypeList, all_same_type, not_bool
from ..params import Bool, Field, Float, Int, OptFloat, Params
from ..registry import register

_TESTS = {
    "isnan": ("x != x", "NaN"),
    "isinf": ("abs(x) == inf", "infinite"),
    "isfinite": ("abs(x) < inf", "a finite number"),
    "isposinf": ("x == inf", "infinite and positive"),
    "isneginf": ("x == -inf", "infinite and negative"),
}


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", 'Field name "copy"', UserWarning)  # pydantic's old name for model_copy

    class NanToNumParams(Params):
        copy: Bool = Field(True, description="Accepted; the result is an array of its own.")  # type: ignore[assignment]
        nan: Float = Field(0.0, description="What becomes of NaN.")
        posinf: OptFloat = Field(None, description="What becomes of infinity; None: the type's largest number.")
        neginf: OptFloat = Field(None, description="What becomes of -infinity; None: the type's least number.")


class AroundParams(Params):
    decimals: Int = Field(0, description="How many decimals are kept; tens, hundreds, … are rounded to when negative.")


def _bool(p: Any, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "bool")


for _name, (_formula, _what) in _TESTS.items():
    _op = register(f"_npi_{_name}", inputs=("x",), doc=f"Whether x is {_what}, as bool.")
    forward(_op, Expression(_formula, ("x",)), types=_bool).set_attr("FGradient", grad_zero)


def _replacements(p: NanToNumParams, dtype: np.dtype[Any]) -> Mapping[str, float]:
    if dtype.kind in "iub":
        return {"n": 0.0, "p": 0.0, "m": 0.0}  # an integer is none of them
    largest = float(np.finfo(dtype).max) if dtype.kind == "f" else 3.3895313892515355e38  # bfloat16's
    return {
        "n": p.nan,
        "p": largest if p.posinf is None else p.posinf,
        "m": -largest if p.neginf is None else p.neginf,
    }


nan_to_num = register("_npi_nan_to_num", NanToNumParams, doc="data with numbers in place of NaN and the infinities.")
forward(
    nan_to_num,
    Expression("where(x != x, n, where(x == inf, p, where(x == -inf, m, x)))", ("x",), ("n", "p", "m")),
    numbers=_replacements,
    types=all_same_type,
)
_finite = Expression("where(abs(x) < inf, g, 0)", ("g", "x"))
backward("_backward_npi_nan_to_num", NanToNumParams, [(_finite, _finite)], inputs=("g", "x"))
nan_to_num.set_attr("FGradient", grad_use_in("_backward_npi_nan_to_num"))


def _factors(p: AroundParams, dtype: np.dtype[Any]) -> Mapping[str, float]:
    return {"s": 10.0 ** max(p.decimals, 0), "t": 10.0 ** max(-p.decimals, 0)}


def _numbers(p: Any, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, outs)
    not_bool(ins)


_SCALED = "(x * s / t)"
_ABOVE = f"2 * ({_SCALED} - floor({_SCALED}))"
around = register(
    "_npi_around", AroundParams, inputs=("x",), doc="x rounded to decimals, halves to the even neighbour."
)
forward(
    around,
    Expression(
        f"where({_ABOVE} == 1, 2 * floor((floor({_SCALED}) + 1) / 2), floor({_SCALED}) + ({_ABOVE} > 1)) * t / s",
        ("x",),
        ("s", "t"),
    ),
    numbers=_factors,
    types=_numbers,
)
around.set_attr("FGradient", grad_zero)
