"""The text of an array's values, as numpy prints them; of a large one only the corners are fetched."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _schema
from .._schema.functions import build

__all__ = ["values_text"]


def values_text(array: Any) -> str:
    """Return numpy's text for the array's values, with numpy's print options.

    Args:
        array: an NDArray.
    """
    options = np.get_printoptions()
    edge = int(options["edgeitems"])
    if array.size <= options["threshold"] or max(array.shape) <= 2 * edge + 1:
        return str(array.asnumpy())
    # One more than the edges along an axis is enough for numpy to leave out the middle, which is never looked at.
    with np.printoptions(threshold=0):
        return str(_corners(array, edge).asnumpy())


def _corners(array: Any, edge: int) -> Any:
    """The first and the last `edge` along each axis, and one between them."""
    concat = build(_schema.get("Concat"), "concat", "concat", array._tensor)
    for axis, length in enumerate(array.shape):
        if length > 2 * edge + 1:
            first = array.slice_axis(axis=axis, begin=0, end=edge + 1)
            last = array.slice_axis(axis=axis, begin=length - edge, end=None)
            array = concat(first, last, dim=axis)
    return array
