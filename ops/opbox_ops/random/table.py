"""The table of distributions: their parameters, which numbers are possible, and how a generator fills an array.

uniform over [low, high); normal of mean loc and deviation scale; gamma of shape alpha and scale beta; exponential of
rate lam; poisson of mean lam; negative_binomial: failures before the k-th success of probability p; its generalised
form: poisson whose mean is gamma distributed, with mean mu and dispersion alpha.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compute import Array, Arrays

__all__ = ["COLUMNS", "TABLE", "Column", "Distribution"]


@dataclass(frozen=True)
class Distribution:
    """A row of the table.

    Attributes:
        name: as it appears in the operators' names.
        params: its numeric parameters with their defaults, in order.
        fill: `(random, out, *params)` fills `out`; the parameters are numbers, or arrays that broadcast to out.
        inputs: the names of the parameters of the _sample_ form.
        drawn: the element types in which the generator draws into an array that exists, the first for all others.
        valid: which numbers are possible, and in words.
        aliases: further names of the _random_ form.
    """

    name: str
    params: Mapping[str, float]
    fill: Callable[..., None]
    inputs: tuple[str, ...]
    drawn: tuple[str, ...] = ()
    valid: Callable[..., bool] = lambda *params: True
    expected: str = ""
    aliases: tuple[str, ...] = ()


def _uniform(random: Any, out: Array, low: Any, high: Any) -> None:
    random.uniform(out, low, high)


def _normal(random: Any, out: Array, loc: Any, scale: Any) -> None:
    random.normal(out, loc, scale)


def _gamma(random: Any, out: Array, alpha: Any, beta: Any) -> None:
    random.gamma(out, alpha, beta)


def _exponential(random: Any, out: Array, lam: Any) -> None:
    random.exponential(out, 1.0 / lam)


def _poisson(random: Any, out: Array, lam: Any) -> None:
    out[...] = random.generator.poisson(lam, out.shape)


def _negative_binomial(random: Any, out: Array, k: Any, p: Any) -> None:
    out[...] = random.generator.poisson(random.generator.gamma(k, (1.0 - p) / p, out.shape), out.shape)


def _generalized(random: Any, out: Array, mu: Any, alpha: Any) -> None:
    # Without dispersion (alpha 0) the mean is mu itself: a Poisson distribution.
    even = alpha == 0
    dispersion = alpha + even
    means = random.generator.gamma(1.0 / dispersion, dispersion * mu, out.shape)
    out[...] = random.generator.poisson(means * (1 - even) + mu * even, out.shape)


TABLE = (
    Distribution(
        "uniform",
        {"low": 0.0, "high": 1.0},
        _uniform,
        ("low", "high"),
        ("float32", "float64"),
        lambda low, high: low <= high,
        "low at most high",
        aliases=("uniform",),
    ),
    Distribution(
        "normal",
        {"loc": 0.0, "scale": 1.0},
        _normal,
        ("mu", "sigma"),
        ("float32", "float64"),
        lambda loc, scale: scale >= 0,
        "scale of at least 0",
        aliases=("normal",),
    ),
    Distribution(
        "gamma",
        {"alpha": 1.0, "beta": 1.0},
        _gamma,
        ("alpha", "beta"),
        ("float64",),
        lambda alpha, beta: alpha > 0 and beta > 0,
        "alpha and beta above 0",
    ),
    Distribution("exponential", {"lam": 1.0}, _exponential, ("lam",), ("float64",), lambda lam: lam > 0, "lam above 0"),
    Distribution("poisson", {"lam": 1.0}, _poisson, ("lam",), (), lambda lam: lam >= 0, "lam of at least 0"),
    Distribution(
        "negative_binomial",
        {"k": 1, "p": 1.0},
        _negative_binomial,
        ("k", "p"),
        (),
        lambda k, p: k > 0 and 0 < p <= 1,
        "k above 0 and p above 0 and at most 1",
    ),
    Distribution(
        "generalized_negative_binomial",
        {"mu": 1.0, "alpha": 1.0},
        _generalized,
        ("mu", "alpha"),
        (),
        lambda mu, alpha: mu >= 0 and alpha >= 0,
        "mu and alpha of at least 0",
    ),
)


@dataclass(frozen=True)
class Column:
    """A column that a _sample_ form works out of its parameters before it draws.

    Attributes:
        dtype: the column's element type, for those of the parameters.
        work_out: `(xp, parameters, column)` writes the column, and returns the columns that `fill` takes.
        fill: see `Distribution`.
    """

    dtype: Callable[..., np.dtype[Any]]
    work_out: Callable[[Any, Arrays, Array], Arrays]
    fill: Callable[..., None]


def _widths(xp: Any, params: Arrays, width: Array) -> Arrays:
    low, high = params
    xp.subtract(high, low, out=width)
    return width, low


def _stretched(random: Any, out: Array, width: Array, low: Array) -> None:
    """Draw from [0, 1), and stretch and move each row to its range."""
    random.uniform(out)
    out *= width
    out += low


def _means(xp: Any, params: Arrays, mean: Array) -> Arrays:
    (lam,) = params
    if xp is np and np.fmin.reduce(lam, axis=None, initial=0) < 0:
        raise ValueError("lam: expected above 0")
    xp.divide(1.0, lam, out=mean)
    return (mean,)


def _of_mean(random: Any, out: Array, mean: Array) -> None:
    random.exponential(out, mean)


COLUMNS = {
    "uniform": Column(np.result_type, _widths, _stretched),
    "exponential": Column(lambda lam: np.dtype("float64") if lam.kind in "biu" else lam, _means, _of_mean),
}
"""By distribution's name; the others draw with their parameters as they are."""
