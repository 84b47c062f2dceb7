"""Every operator that draws, by statistics: moments, distribution, and seeds of either sign.

A row says how one number (or many) comes from a call, and whose distribution it has: of SciPy, compared by
Kolmogorov-Smirnov, or a list of values with their probabilities, compared by chi-square. Bounds are such that a right
generator fails at less than one seed in ten thousand; the seeds here are fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.stats as st

from opbox_ops import registry
from opbox_ops.backend import RandomSource, backend_for
from opbox_ops.image.colour import CHANGES
from opbox_ops.image.hue import turn_temps
from opbox_service.executor import invoke

CPU = backend_for("cpu")
N = 4000
CALLS = 1500
"""How often an operator is called that draws one number a call."""
RARE = 1e-4

Draw = Callable[[RandomSource], np.ndarray]


class Sampler(NamedTuple):
    """A row.

    Attributes:
        op: the operator.
        draw: numbers, from a source.
        wanted: a distribution of SciPy; or values and their probabilities.
    """

    op: str
    draw: Draw
    wanted: Any


def call(op: str, attrs: dict[str, Any], inputs: Sequence[Any], source: RandomSource) -> np.ndarray:
    arrays = [np.asarray(x, "float32") for x in inputs]
    return invoke(op, attrs, arrays, backend=CPU, random=source, is_train=True)[0]


def many(op: str, attrs: dict[str, Any], *inputs: Any, pick: Callable[[np.ndarray], Any] = lambda x: x) -> Draw:
    return lambda source: np.asarray(pick(call(op, attrs, inputs, source)), float).ravel()


def one_by_one(op: str, attrs: dict[str, Any], x: Any, number: Callable[[np.ndarray], Any]) -> Draw:
    return lambda source: np.array([number(call(op, attrs, [x], source)) for _ in range(CALLS)], float)


def counts(distribution: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values that a distribution of whole numbers has, but for its last thousandth of a millionth."""
    values = np.arange(distribution.ppf(1e-12), distribution.ppf(1 - 1e-9) + 1)
    return values, distribution.pmf(values)


NUMBERS: dict[str, tuple[dict[str, float], Any]] = {
    "uniform": ({"low": -2, "high": 3}, st.uniform(-2, 5)),
    "normal": ({"loc": 1.5, "scale": 2}, st.norm(1.5, 2)),
    "gamma": ({"alpha": 2.5, "beta": 0.5}, st.gamma(2.5, scale=0.5)),
    "exponential": ({"lam": 4}, st.expon(scale=0.25)),
    "poisson": ({"lam": 3.5}, counts(st.poisson(3.5))),
    "negative_binomial": ({"k": 3, "p": 0.4}, counts(st.nbinom(3, 0.4))),
    "generalized_negative_binomial": ({"mu": 2.0, "alpha": 0.5}, counts(st.nbinom(2, 0.5))),
}
PIXEL = np.array([[[90.0, 140.0, 40.0], [30.0, 20.0, 200.0]]])
"""An image of two pixels; the first is in the middle of its sixth of the circle of hues."""
GRID = np.linspace(-0.4, 1.9, 2301)


@cache
def changed_by(change: str) -> np.ndarray:
    """A number of the image as each factor of GRID changes it."""
    temps = [np.empty(temp.shape, temp.dtype) for temp in turn_temps(PIXEL.size // 3, PIXEL.dtype, "cpu")]
    numbers = []
    for factor in GRID:
        image = PIXEL.copy()
        CHANGES[change](np, image, factor, temps)
        numbers.append(image[0, 0, 0])
    return np.array(numbers)


def factor(change: str, image: np.ndarray, low: float, high: float) -> float:
    """The factor that has changed PIXEL to `image`."""
    inside = np.abs(GRID - (low + high) / 2) <= (high - low) / 2 + 1e-9
    values, factors = changed_by(change)[inside], GRID[inside]
    order = np.argsort(values)
    assert (np.diff(values) > 0).all() or (np.diff(values) < 0).all()
    return float(np.interp(image[0, 0, 0], values[order], factors[order]))


def colour_rows() -> list[Sampler]:
    rows = []
    for change, (low, high) in {
        "brightness": (0.5, 1.5),
        "contrast": (0.2, 0.9),
        "saturation": (0.4, 1.7),
        "hue": (0.0, 0.07),
    }.items():
        op, attrs = f"_image_random_{change}", {"min_factor": low, "max_factor": high}
        number = lambda x, change=change, low=low, high=high: factor(change, x, low, high)  # noqa: E731
        rows.append(Sampler(op, one_by_one(op, attrs, PIXEL, number), st.uniform(low, high - low)))
        middle, width = (0.0, 0.07) if change == "hue" else (1.0, 0.5)
        jitter = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0, change: width}
        edges = {"low": middle - width, "high": middle + width}
        number = lambda x, change=change, edges=edges: factor(change, x, **edges)  # noqa: E731
        op = "_image_random_color_jitter"
        rows.append(Sampler(op, one_by_one(op, jitter, PIXEL, number), st.uniform(edges["low"], 2 * width)))
    return rows


def zipf(classes: int) -> tuple[np.ndarray, np.ndarray]:
    k = np.arange(classes)
    edges = np.clip([k + 0.5, k + 1.5], 1, classes)
    return k.astype(float), np.log(edges[1] / edges[0]) / np.log(classes)


ORDERS = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
HALF = (np.array([0.0, 1.0]), np.array([0.5, 0.5]))
CHANCES = np.array([0.1, 0.0, 0.55, 0.35])
ROWS: list[Sampler] = [
    *(Sampler(f"_random_{n}", many(f"_random_{n}", {**p, "shape": (N,)}), w) for n, (p, w) in NUMBERS.items()),
    *(
        Sampler(f"_random_{n}_like", many(f"_random_{n}_like", dict(p), np.zeros((40, N // 40))), w)
        for n, (p, w) in NUMBERS.items()
    ),
    *(
        Sampler(f"_sample_{n}", many(f"_sample_{n}", {"shape": (N,)}, *([x] for x in p.values())), w)
        for n, (p, w) in NUMBERS.items()
    ),
    Sampler(
        "_random_randint", many("_random_randint", {"low": -3, "high": 5, "shape": (N,)}), counts(st.randint(-3, 5))
    ),
    Sampler("_sample_multinomial", many("_sample_multinomial", {"shape": (N,)}, CHANCES), (np.arange(4.0), CHANCES)),
    Sampler("_sample_unique_zipfian", many("_sample_unique_zipfian", {"range_max": 6, "shape": (N, 1)}), zipf(6)),
    Sampler(
        "_shuffle",
        one_by_one("_shuffle", {}, np.arange(4.0), lambda x: ORDERS[tuple(x.astype(int))]),
        (np.arange(24.0), np.full(24, 1 / 24)),
    ),
    Sampler("Dropout", many("Dropout", {"p": 0.3}, np.ones(N)), (np.array([0, 1 / 0.7]), np.array([0.3, 0.7]))),
    Sampler(
        "LeakyReLU",
        many(
            "LeakyReLU",
            {"act_type": "rrelu", "lower_bound": 0.1, "upper_bound": 0.4},
            -np.ones((N, 1)),
            pick=np.negative,
        ),
        st.uniform(0.1, 0.3),
    ),
    # Two layers that hand their input on: what is between them is dropped.
    Sampler(
        "RNN",
        many(
            "RNN",
            {"state_size": 1, "num_layers": 2, "mode": "rnn_relu", "p": 0.25},
            np.ones((1, N, 1)),
            [1, 0, 1, 0, 0, 0, 0, 0],
            np.zeros((2, N, 1)),
        ),
        (np.array([0, 1 / 0.75]), np.array([0.25, 0.75])),
    ),
    *(
        Sampler(
            f"_image_random_flip_{way}",
            one_by_one(f"_image_random_flip_{way}", {}, np.arange(12.0).reshape(2, 2, 3), lambda x: x.ravel()[0] > 0),
            HALF,
        )
        for way in ("left_right", "top_bottom")
    ),
    *colour_rows(),
    *(
        Sampler(f"_npi_{n}", many(f"_npi_{n}", {**p, "size": (N,)}), expected)
        for n, p, expected in (
            ("normal", {"loc": 0.5, "scale": 2, "dtype": "float32"}, st.norm(0.5, 2)),
            ("uniform", {"low": -1, "high": 2, "dtype": "float32"}, st.uniform(-1, 3)),
            ("logistic", {"loc": 0.5, "scale": 2}, st.logistic(0.5, 2)),
            ("gumbel", {"loc": 0.5, "scale": 2}, st.gumbel_r(0.5, 2)),
            ("exponential", {"scale": 2}, st.expon(scale=2)),
            ("rayleigh", {"scale": 2}, st.rayleigh(scale=2)),
            ("gamma", {"shape": 2, "scale": 3}, st.gamma(2, scale=3)),
            (
                "bernoulli",
                {"prob": 0.3, "logit": None, "is_logit": False, "dtype": "float32"},
                (np.arange(2.0), np.array([0.7, 0.3])),
            ),
        )
    ),
    # The light's three numbers go through its eigenvectors: their sum over the channels is normal too.
    Sampler(
        "_image_random_lighting",
        one_by_one("_image_random_lighting", {"alpha_std": 0.1}, np.full((1, 1, 3), 90.0), lambda x: x[0, 0, 0] - 90),
        st.norm(0, 0.1 * np.sqrt((55.46 * 0.5675) ** 2 + (4.794 * 0.7192) ** 2 + (1.148 * 0.4009) ** 2)),
    ),
]
NAMES = [f"{row.op}-{k}" for k, row in enumerate(ROWS)]


def test_no_operator_that_draws_is_without_a_row() -> None:
    drawing = {n for n in registry.names() if "_pdf_" not in n and (n.startswith("_sample_") or "random" in n)}
    of_numpy = {row.op for row in ROWS if row.op.startswith("_npi_")}
    assert drawing | of_numpy | {"_shuffle", "Dropout", "LeakyReLU", "RNN"} == {row.op for row in ROWS}
    assert {n for n in registry.names() if registry.get(n).get_attr("TRandom")} == {row.op for row in ROWS}


@pytest.mark.parametrize("seed", [42, -42])
@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_distribution(row: Sampler, seed: int) -> None:
    sample = row.draw(CPU.random(seed))
    n = sample.size
    if isinstance(row.wanted, tuple):
        values, chances = row.wanted
        mean = (values * chances).sum()
        central = values - mean
        variance, fourth = (central**2 * chances).sum(), (central**4 * chances).sum()
        places = np.abs(values[:, None] - sample).argmin(axis=0)
        assert np.abs(values[places] - sample).max() < 1e-5  # nothing else is drawn
        assert not (chances[places] == 0).any()
        # Values that are rare are counted together, as chi-square asks for five of each.
        expected, seen = chances * n, np.bincount(places, minlength=len(values))
        often = expected >= 5
        expected = np.append(expected[often], n - expected[often].sum())
        seen = np.append(seen[often], n - seen[often].sum())
        usable = expected > 1e-3
        assert st.chisquare(seen[usable], expected[usable] * seen[usable].sum() / expected[usable].sum()).pvalue > RARE
    else:
        mean, variance, kurtosis = (float(x) for x in row.wanted.stats("mvk"))
        fourth = (kurtosis + 3) * variance**2
        assert st.kstest(sample, row.wanted.cdf).pvalue > RARE
    assert abs(sample.mean() - mean) < 4.5 * np.sqrt(variance / n)
    assert abs(sample.var() - variance) < 5 * np.sqrt((fourth - variance**2) / n) + 25 * variance / n


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_seeds_of_either_sign(row: Sampler) -> None:
    first = row.draw(CPU.random(-7))
    np.testing.assert_array_equal(row.draw(CPU.random(-7)), first)
    np.testing.assert_array_equal(row.draw(CPU.random(2**64 - 7)), first)
    for other in (7, -8, 0):
        assert (row.draw(CPU.random(other)) != first).any()
    source = CPU.random(-7)
    row.draw(source)
    assert (row.draw(source) != first).any()  # the stream goes on
    source.seed(-7)
    np.testing.assert_array_equal(row.draw(source), first)
