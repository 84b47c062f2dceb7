"""What scripts and tests use of `mx.test_utils`: MNIST from local files, and comparisons of arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from .errors import MXNetError
from .io import read_idx

__all__ = ["almost_equal", "assert_almost_equal", "default_context", "get_mnist", "same"]

_FILES = {
    "train_data": "train-images-idx3-ubyte",
    "train_label": "train-labels-idx1-ubyte",
    "test_data": "t10k-images-idx3-ubyte",
    "test_label": "t10k-labels-idx1-ubyte",
}
# By element type: (relative, absolute) differences that rounding explains, MXNet's own defaults.
_TOLERANCES = {
    "float16": (1e-2, 1e-1),
    "float32": (1e-4, 1e-3),
    "float64": (1e-5, 1e-20),
}


def default_context() -> Any:
    """The context that tests run in: the current one."""
    from .context import current_context

    return current_context()


def get_mnist(path: str | Path | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """The MNIST digits from idx files in a folder; nothing is downloaded.

    Args:
        path: the folder; the environment variable OPBOX_MNIST, else `data`, when None. Files may be gzipped.

    Returns:
        `train_data`, `test_data`: float32 (n, 1, 28, 28) in [0, 1]; `train_label`, `test_label`: int8 (n,).

    Raises:
        MXNetError: the folder lacks one of the four files.
    """
    folder = Path(path or os.environ.get("OPBOX_MNIST", "data"))
    held = {}
    for key, name in _FILES.items():
        try:
            raw = read_idx(folder / name)
        except FileNotFoundError:
            raise MXNetError(
                f"get_mnist: expected {name} (or {name}.gz) in {folder.resolve()}; put MNIST's four idx files into a "
                "folder, and name it as the argument or in OPBOX_MNIST"
            ) from None
        if key.endswith("data"):
            held[key] = raw.reshape(len(raw), 1, *raw.shape[1:]).astype(np.float32) / 255
        else:
            held[key] = raw.astype(np.int8)
    return held


def _host(array: Any) -> np.ndarray[Any, Any]:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def same(a: Any, b: Any) -> bool:
    """Whether two arrays are equal to the last bit."""
    return np.array_equal(_host(a), _host(b))


def _tolerances(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], rtol: Any, atol: Any) -> tuple[float, float]:
    """The looser of the two types' tolerances, where none are given."""
    found = [_TOLERANCES.get(one.dtype.name, (0.0, 0.0)) for one in (a, b)]
    default = (max(one[0] for one in found), max(one[1] for one in found))
    return default[0] if rtol is None else rtol, default[1] if atol is None else atol


def almost_equal(a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False) -> bool:
    """Whether |a - b| <= atol + rtol |b| everywhere."""
    left, right = _host(a), _host(b)
    rtol, atol = _tolerances(left, right, rtol, atol)
    return bool(np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan))


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: float | None = None,
    atol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    use_broadcast: bool = True,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Raise AssertionError, with the places that differ most, unless |a - b| <= atol + rtol |b| everywhere.

    Args:
        a, b: arrays of any kind.
        rtol, atol: tolerances; by element type when None.
        names: what the message calls them.
        equal_nan: whether nan equals nan.
        use_broadcast: whether shapes may differ as far as broadcasting goes.
        mismatches: how many places are printed; the second number is taken and ignored.
    """
    left, right = _host(a), _host(b)
    if not use_broadcast and left.shape != right.shape:
        raise AssertionError(f"shapes: expected {right.shape} as of {names[1]}, got {left.shape} as of {names[0]}")
    rtol, atol = _tolerances(left, right, rtol, atol)
    if np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan):
        return
    left, right = np.broadcast_arrays(np.atleast_1d(left), np.atleast_1d(right))
    wide_left, wide_right = left.astype(np.float64), right.astype(np.float64)
    excess = np.abs(wide_left - wide_right) / (atol + rtol * np.abs(wide_right) + 1e-300)
    unequal = ~np.isclose(wide_left, wide_right, rtol=rtol, atol=atol, equal_nan=equal_nan)
    excess = np.where(unequal, np.nan_to_num(excess, nan=np.inf), 0.0)
    worst = np.argsort(excess, axis=None)[::-1][: min(mismatches[0], int(unequal.sum()))]
    lines = [
        f"  at {tuple(int(i) for i in np.unravel_index(int(flat), left.shape))}: "
        f"{names[0]} = {left.reshape(-1)[flat]:.8g}, {names[1]} = {right.reshape(-1)[flat]:.8g}"
        for flat in worst
    ]
    raise AssertionError(
        f"{names[0]} and {names[1]} differ in {int(unequal.sum())} of {left.size} elements "
        f"(rtol {rtol:g}, atol {atol:g}):\n" + "\n".join(lines)
    )
