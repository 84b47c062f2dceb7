"""_contrib_bipartite_matching on a GPU: the scores of `matching` are the numbers of a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ...bound_calls import as_one, nothing
from ...compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ...vision.bipartite_matching import BipartiteMatchingParams, op
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits
from .arithmetic import rounded_scalar
from .matching import MATCHED, PAIRS, match_calls, match_temps, matchable, matching
from .sorted_matching import KEYS, SCORED, keyed

_IMAGES, _ROWS, _COLUMNS = 8, 1000, 50
_DATA = 4 * _IMAGES * _ROWS * _COLUMNS

MATCH = KernelTemplate(
    "opbox_match",
    f"const T *data, int rows, int columns, int ascending, {MATCHED}",
    matching(
        "(ascending ? -1 : 1) * A(data[row * columns + column])",
        "  const int widest = columns;\n  data += (long long)blockIdx.x * rows * columns;\n",
    ),
    (
        f"{_IMAGES} matrices of {_ROWS:,} by {_COLUMNS}",
        lambda: Moved(_DATA + 4 * _IMAGES * (_ROWS + 3 * _COLUMNS), _DATA + 4 * _IMAGES * (_ROWS + _COLUMNS)),
    ),
    PAIRS,
)
SCORES = KernelTemplate(
    "opbox_match_keys",
    f"const T *data, int rows, int columns, int ascending, {SCORED}",
    keyed("(ascending ? -1 : 1) * A(data[(long long)image * pairs + pair])"),
    (f"{_IMAGES} matrices of {_ROWS:,} by {_COLUMNS}", lambda: Moved(2 * _DATA, 2 * _DATA)),
    KEYS,
)
KERNELS += [MATCH, SCORES]


def _sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the number of matrices, of rows and of columns."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _temps(p: BipartiteMatchingParams, call: CallSpec) -> list[Temp]:
    return match_temps(*_sizes(call.inputs[0].shape), call.inputs[0].dtype)


def _accepts(p: BipartiteMatchingParams, call: CallSpec) -> bool:
    data = call.inputs[0]
    return fits(call, data) and matchable(*data.shape[-2:])


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: BipartiteMatchingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    if all(out is None for out in outputs):
        return nothing
    (data,), calls = contiguous(ctx, inputs)
    _, rows, columns = _sizes(data.shape)
    limit = p.topk + 1 if p.topk > 0 else MAX_ELEMENTS
    threshold = rounded_scalar(-p.threshold if p.is_ascend else p.threshold, data.dtype)
    arguments = (data, *map(np.int32, (rows, columns, p.is_ascend)))
    calls += match_calls(ctx, MATCH, SCORES, data.dtype, arguments, min(limit, MAX_ELEMENTS), threshold)
    for out, partner in zip(outputs, ctx.temp[:2], strict=True):
        if out is not None:
            calls.append(partial(ctx.xp.copyto, out, partner.reshape(out.shape), casting="unsafe"))
    return as_one(calls)
