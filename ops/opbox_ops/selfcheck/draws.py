"""Rows of random numbers: a GPU draws others than NumPy, of the same distribution."""

from __future__ import annotations

from .row import Input, Row

__all__ = ["ROWS"]

_FLOATS = ("float32", "float16", "float64")
_DISTRIBUTIONS = {
    "exponential": ({"lam": 2.0}, [(0.5, 2.0)]),
    "gamma": ({"alpha": 2.0, "beta": 0.5}, [(0.5, 2.0), (0.5, 2.0)]),
    "poisson": ({"lam": 3.0}, [(1.0, 5.0)]),
    "negative_binomial": ({"k": 3, "p": 0.4}, [(1.0, 5.0), (0.2, 0.8)]),
    "generalized_negative_binomial": ({"mu": 2.0, "alpha": 0.5}, [(0.5, 2.0), (0.2, 0.8)]),
}
"""Parameters, and the ranges of these where they are arrays."""
_SMALL, _LARGE = (3, 5), (70, 600)


def _rows(name: str, attrs: dict[str, float], ranges: list[tuple[float, float]]) -> list[Row]:
    typed = {"dtype": "{dtype}"}
    few, many = ([Input(shape, *one) for one in ranges] for shape in ((3,), (300,)))
    return [
        Row(
            f"_random_{name}",
            [],
            [],
            {**attrs, **typed, "shape": _SMALL},
            {"shape": _LARGE},
            compares="draws",
            gradient=False,
            types=_FLOATS,
        ),
        Row(f"_random_{name}_like", [_SMALL], [_LARGE], attrs, compares="draws", gradient=False, types=_FLOATS),
        Row(
            f"_sample_{name}",
            few,
            many,
            {**typed, "shape": 5},
            {"shape": 140},
            compares="draws",
            gradient=False,
            types=_FLOATS,
        ),
    ]


ROWS = [
    *(row for name, (attrs, ranges) in _DISTRIBUTIONS.items() for row in _rows(name, attrs, ranges)),
    Row(
        "_npi_gamma",
        [],
        [],
        {"shape": 2, "scale": 3, "dtype": "{dtype}", "size": _SMALL},
        {"size": _LARGE},
        compares="draws",
        gradient=False,
        types=("float32", "float64"),
    ),
    Row(
        "_random_randint",
        [],
        [],
        {"low": -3, "high": 400, "dtype": "{dtype}", "shape": _SMALL},
        {"shape": _LARGE},
        compares="draws",
        gradient=False,
        types=("int32", "int64"),
    ),
    Row(
        "_sample_unique_zipfian",
        [],
        [],
        {"range_max": 50, "shape": (3, 8)},
        {"range_max": 5000, "shape": (140, 64)},
        compares="draws",
        gradient=False,
        types=("float32",),
    ),
    Row(
        "_sample_multinomial",
        [Input((3, 5), 0.1, 1.0)],
        [Input((140, 33), 0.1, 1.0)],
        {"shape": 7},
        {"shape": 65},
        compares="draws",
        gradient=False,
        types=_FLOATS,
    ),
    Row("Dropout", [(3, 5)], [(70, 601)], {"p": 0.3}, why="the mask is the CPU's, bit for bit"),
    Row("_shuffle", [(5, 3)], [(1500, 33)], compares="order", gradient=False, types=_FLOATS),
]
