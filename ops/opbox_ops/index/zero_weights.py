"""Weighted sums in which an infinity or NaN counts only where its weight is not zero.

A product of matrices multiplies an infinity by the zero weights too, and their product is NaN. So where a sum is not
finite, finite numbers are summed by the weights, and it is counted what else is in each sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute import Array

__all__ = ["lost_to_zero_weights", "weighted_sums"]


def lost_to_zero_weights(xp: Any, sums: Array) -> bool:
    """Return whether sums may have met zero weights; on a GPU, which does not wait to look at them, it is False."""
    # The extremes take no memory, and either is NaN where any element is.
    return xp is np and bool(sums.size) and not (np.isfinite(sums.min()) and np.isfinite(sums.max()))


def weighted_sums(weigh: Callable[[Array, bool], Array], source: Array) -> Array:
    """Return sums of `source`, in the type that `weigh` answers.

    Args:
        weigh: from an array like `source`, and whether every weight above 0 is to be 1, to the weighted sums. Weights
            are not negative.
    """
    total = weigh(np.where(np.isfinite(source), source, 0), False)
    for value, places in ((np.inf, source == np.inf), (-np.inf, source == -np.inf), (np.nan, np.isnan(source))):
        if places.any():
            total[weigh(places.astype(source.dtype), True) > 0] += value
    return total
