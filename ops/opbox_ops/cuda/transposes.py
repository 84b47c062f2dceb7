"""transpose, SwapAxis and moveaxis on a GPU: by tiles where each image is a matrix that is transposed, else by rows.

Axes that stay neighbours count as one. What is left is a matrix (rows, columns), or images of one, for most calls that
networks make: of channels second and last, of the heads of attention. Numbers are moved as others of their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs
from ..infer import size_of
from ..operator import Op
from ..shape.transpose import TRANSPOSES
from .kernel import MAX_ELEMENTS, contiguous
from .reorder import transposed_images
from .strided_copies import copies

_MOVED_AS = {2: np.float16, 4: np.float32, 8: np.float64}
"""The type that elements are moved as, by their size."""


def merged_axes(shape: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """An array's shape and the order of its axes, without axes of 1, and with axes that stay neighbours as one.

    Example:
        >>> merged_axes((64, 128, 56, 56), (0, 2, 3, 1))
        ((64, 128, 3136), (0, 2, 1))
    """
    groups: list[list[int]] = []
    long = [axis for axis in range(len(shape)) if shape[axis] != 1]
    behind = dict(pairwise(long))
    for axis in (axis for axis in order if shape[axis] != 1):
        if groups and behind.get(groups[-1][-1]) == axis:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    places = sorted(range(len(groups)), key=lambda k: groups[k][0])
    sizes = tuple([size_of(shape[axis] for axis in groups[k]) for k in places])
    return sizes, tuple([places.index(k) for k in range(len(groups))])


def _accepts(p: Any, call: CallSpec) -> bool:
    data, out = call.inputs[0], call.outputs[0]
    return call.plain and data.dtype == out.dtype and 0 < size_of(data.shape) <= MAX_ELEMENTS


def _transposed(ctx: OpContext, data: Array, out: Array, order: tuple[int, ...]) -> Call:
    sizes, places = merged_axes(data.shape, order)
    kind = _MOVED_AS.get(data.dtype.itemsize)
    if kind is not None and places in ((1, 0), (0, 2, 1)):
        (source,), calls = contiguous(ctx, [data])
        images, rows, columns = (1, *sizes)[-3:]
        return as_one([*calls, transposed_images(ctx.xp, source.view(kind), out.view(kind), (images, rows, columns))])
    return copies(ctx.xp, [(out, data.transpose(order))])


def _attach(op: Op, order_of: Callable[[Any, int], tuple[int, ...]]) -> None:
    @op.compute("gpu", level="generated", prepares=True, accepts=_accepts)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        return _transposed(ctx, inputs[0], outputs[0], order_of(p, inputs[0].ndim))


for _op, _order_of in TRANSPOSES:
    _attach(_op, _order_of)
