"""Compares two arrays: AssertionError names the place where they differ most."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["close", "same"]


def close(what: str, got: Any, want: Any, tolerance: float = 1e-4) -> None:
    """AssertionError with the worst place, unless two arrays agree; nan agrees with nan."""
    left, right = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert left.shape == right.shape, f"{what}: expected shape {right.shape}, got {left.shape}"
    finite = np.abs(right[np.isfinite(right)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    off = ~np.isclose(left, right, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if off.any():
        worst = np.where(off, np.nan_to_num(np.abs(left - right), nan=np.inf), -1)
        at = np.unravel_index(int(np.argmax(worst)), off.shape)
        place = tuple(int(i) for i in at)
        raise AssertionError(
            f"{what} in {int(off.sum())} of {off.size} places, most at {place}: expected {right[at]:.6g}, "
            f"got {left[at]:.6g}"
        )


def same(what: str, got: Any, want: Any) -> None:
    """AssertionError unless two arrays are equal to the last bit; nan equals nan."""
    assert np.array_equal(np.asarray(got), np.asarray(want), equal_nan=got.dtype.kind == "f"), what
