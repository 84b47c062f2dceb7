"""Functions of one array with parameters, and a kink: clip, hard_sigmoid, smooth_l1.

clip           out = a_max above a_max, else a_min below a_min, else data; gdata = gout where data was not cut off
hard_sigmoid   out = min(max(alpha * data + beta, 0), 1)
smooth_l1      out = (scalar * data)**2 / 2 where |data| < 1 / scalar**2, else |data| - 0.5 / scalar**2
               (Girshick, "Fast R-CNN", 2015, equation 3, with sigma = scalar)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import DTypeError, ParamError

from ..expression.family import backward, backward_with, derivative, forward
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise
from ..infer import TypeList, all_same_shape, all_same_type, numeric_types
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import register


class ClipParams(Params):
    a_min: Float = Field(description="The smallest value that is kept.")
    a_max: Float = Field(description="The largest value that is kept.")


class HardSigmoidParams(Params):
    alpha: Float = Field(0.2, description="The slope.")
    beta: Float = Field(0.5, description="The value at 0.")


class SmoothL1Params(Params):
    scalar: Float = Field(1.0, description="Sigma: the quadratic part ends at 1 / sigma**2.")


def _input(node: Node) -> Entry:
    return node.inputs[0]


def _output(node: Node) -> Entry:
    return Entry(node, 0)


# -- clip ---------------------------------------------------------------------------------------------------------


def _bounds(p: ClipParams, dtype: np.dtype[Any]) -> Mapping[str, float]:
    """The bounds; for integers, whole and within what the type can hold."""
    if dtype.kind not in "iu":
        return {"low": p.a_min, "high": p.a_max}
    for name, bound in (("a_min", p.a_min), ("a_max", p.a_max)):
        if math.isnan(bound):
            raise ParamError(f"clip: parameter {name!r}: expected a number for {dtype}, got nan")
    limits = np.iinfo(dtype)
    low, high = (min(max(bound, limits.min), limits.max) for bound in (p.a_min, p.a_max))
    return {"low": math.trunc(low), "high": math.trunc(high)}


clip = register("clip", ClipParams, doc="data, cut off at a_min and a_max.")
_between = Pointwise(("x",), (Expression("minimum(maximum(x, low), high)", ("x",), ("low", "high")),))
# Bounds that are the wrong way round: a_max comes first, as in MXNet.
_crossed = Pointwise(("x",), (Expression("where(x > high, high, maximum(x, low))", ("x",), ("low", "high")),))


def _clipped(p: ClipParams, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
    return (_crossed if p.a_min > p.a_max else _between).with_numbers(_bounds(p, outs[0]))


clip.infer_shape(all_same_shape)
clip.infer_type(numeric_types)
clip.inplace((0, 0))
pointwise(clip, _clipped)
_clip_gradient = derivative("where((x > high) + (x < low), 0, g)", ("x",), ("low", "high"))
backward("_backward_clip", ClipParams, [_clip_gradient], inputs=("g", "x"), numbers=_bounds)
clip.set_attr("FGradient", backward_with("_backward_clip", [_input]))

# -- hard_sigmoid -------------------------------------------------------------------------------------------------


def _line(p: HardSigmoidParams, dtype: np.dtype[Any]) -> Mapping[str, float]:
    return {"alpha": p.alpha, "beta": p.beta}


def _real_types(p: Any, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, outs)
    if ins[0] is not None and ins[0].kind in "iub":
        raise DTypeError(f"expected a real type, got {ins[0]}: Cast it first", side=ins.side, index=0)


hard_sigmoid = register("hard_sigmoid", HardSigmoidParams, doc="min(max(alpha * data + beta, 0), 1)")
forward(
    hard_sigmoid,
    Expression("maximum(minimum(alpha * x + beta, 1), 0)", ("x",), ("alpha", "beta")),
    numbers=_line,
    types=_real_types,
)
_line_gradient = derivative("where((y > 0) * (y < 1), alpha * g, 0)", ("y",), ("alpha",))
backward("_backward_hard_sigmoid", HardSigmoidParams, [_line_gradient], inputs=("g", "y"), numbers=_line)
hard_sigmoid.set_attr("FGradient", backward_with("_backward_hard_sigmoid", [_output]))

# -- smooth_l1 ----------------------------------------------------------------------------------------------------


def _sigma(p: SmoothL1Params, dtype: np.dtype[Any]) -> Mapping[str, float]:
    square = p.scalar * p.scalar
    return {"sq": square, "edge": 1 / square if square else math.inf}


smooth_l1 = register("smooth_l1", SmoothL1Params, doc="Quadratic near 0, linear further out: a robust loss.")
# min(|x|, edge) folds both pieces into one formula: t = |x| within the edge, t = edge beyond it.
_FOLDED = "sq * minimum(abs(x), edge) * (abs(x) - 0.5 * minimum(abs(x), edge))"
forward(smooth_l1, Expression(_FOLDED, ("x",), ("sq", "edge")), numbers=_sigma)
_slope = derivative("maximum(minimum(sq * x, 1.0), -1.0)", ("x",), ("sq",))
backward("_backward_smooth_l1", SmoothL1Params, [_slope], inputs=("g", "x"), numbers=_sigma)
smooth_l1.set_attr("FGradient", backward_with("_backward_smooth_l1", [_input]))
