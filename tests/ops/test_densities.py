"""Densities against SciPy, and the sampling of different classes."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats as st

from opbox_ops.backend import backend_for
from opbox_ops.cache import INDEX_PIECE
from opbox_ops.random.zipfian import ZipfianParams, draw_different
from opbox_protocol.errors import MXNetError
from tests.cases.case import Arg, Case

from .harness import Run
from .test_random import run as draw

X = np.array([0.1, 0.7, 2.5])
COUNT = np.array([0.0, 1.0, 6.0])
TABLE: list[tuple[str, list[float], np.ndarray, Any]] = [
    ("uniform", [-1.0, 3.0], X, st.uniform(-1, 4).logpdf),
    ("normal", [0.5, 2.0], X, st.norm(0.5, 2).logpdf),
    ("gamma", [2.5, 0.5], X, st.gamma(2.5, scale=2).logpdf),
    ("gamma", [0.3, 4.0], X, st.gamma(0.3, scale=0.25).logpdf),
    ("exponential", [0.4], X, st.expon(scale=2.5).logpdf),
    ("poisson", [3.5], COUNT, st.poisson(3.5).logpmf),
    ("negative_binomial", [2.5, 0.3], COUNT, st.nbinom(2.5, 0.3).logpmf),
    ("generalized_negative_binomial", [2.0, 0.5], COUNT, st.nbinom(2, 0.5).logpmf),
]


def density(name: str, arrays: list[np.ndarray], is_log: bool) -> np.ndarray:
    inputs = {f"in{k}": Arg(array.shape, values=array.tolist()) for k, array in enumerate(arrays)}
    case = Case(f"_random_pdf_{name}", inputs, {"is_log": is_log})
    return np.asarray(Run(case, "float64", backend_for("cpu")).forward()[0])


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize(("name", "params", "x", "expected"), TABLE)
def test_densities_are_scipys(name: str, params: list[float], x: np.ndarray, expected: Any, is_log: bool) -> None:
    got = density(name, [x[None], *(np.array([number]) for number in params)], is_log)
    np.testing.assert_allclose(got[0], expected(x) if is_log else np.exp(expected(x)), rtol=1e-10)


def test_a_dirichlet_density_is_scipys() -> None:
    alpha, x = np.array([0.5, 2.0, 3.5]), np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    got = density("dirichlet", [x[None], alpha[None]], True)
    np.testing.assert_allclose(got[0], [st.dirichlet(alpha).logpdf(row) for row in x], rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "shapes", "sentence"),
    [
        ("normal", [(3,), (1,), (1,)], "expected (1,), got (3,)"),
        ("normal", [(2,), (2, 3), (2, 3)], "expected first axes as the parameters' (2, 3), got (2,)"),
        ("normal", [(2, 3), (2,), (3,)], "expected (2,), got (3,)"),
        ("dirichlet", [(2, 3), (2,)], "expected (?, 2), got (2, 3)"),
        ("dirichlet", [(2, 3), (4, 2, 3)], "expected first axes as the parameters' (4, 2, 3), got (2, 3)"),
    ],
)
def test_shapes_that_do_not_fit(name: str, shapes: list[tuple[int, ...]], sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        density(name, [np.ones(shape) for shape in shapes], False)
    assert sentence in str(caught.value)


def test_different_classes_with_zipfs_frequencies() -> None:
    n, classes = 20_000, 6
    drawn, tries = draw("_sample_unique_zipfian", {"range_max": classes, "shape": (n, 2)})
    edges = np.log(np.clip(np.arange(classes + 1) + 0.5, 1, classes)) / np.log(classes)
    chance = np.diff(edges)
    counts = np.bincount(drawn[:, 0], minlength=classes)
    assert st.chisquare(counts, chance * n).pvalue > 1e-4
    # Given the first class, the second is any other in proportion to its frequency.
    pairs = chance[:, None] * chance / (1 - chance)[:, None]
    np.fill_diagonal(pairs, 0)
    second = np.bincount(drawn[:, 1], minlength=classes)
    assert st.chisquare(second, pairs.sum(0) * n).pvalue > 1e-4
    # The draws after the first until the second class: geometric.
    expected = 1 + (chance / (1 - chance)).sum()
    assert abs(tries.mean() - expected) < 5 * tries.std() / np.sqrt(n)


def test_all_classes_once_in_every_row() -> None:
    drawn, tries = draw("_sample_unique_zipfian", {"range_max": 7, "shape": (50, 7)})
    assert (np.sort(drawn, axis=1) == np.arange(7)).all()
    assert (tries >= 7).all()


def test_rows_that_lack_classes_go_on_in_little_memory() -> None:
    """The numbers are distributed as if all draws were kept."""
    p = ZipfianParams(range_max=40, shape=(300, 40))
    tries = []
    for max_draws in (1 << 30, 64):
        context: Any = SimpleNamespace(xp=np, random=backend_for("cpu").random(3))
        drawn, counts = draw_different(p, context, max_draws)
        assert (np.sort(drawn, axis=1) == np.arange(40)).all()
        assert (counts >= 40).all()
        tries.append(counts)
        # The frequent classes come first.
        assert np.median(np.argmax(drawn == 0, axis=1)) < np.median(np.argmax(drawn == 38, axis=1))
    assert st.ks_2samp(*tries).pvalue > 1e-4


def test_a_row_of_all_of_very_many_classes_keeps_no_draws() -> None:
    """Half a million draws for 7,000 classes; of 1,000,000 classes there were 160 million, and all were kept."""
    p, context = ZipfianParams(range_max=7_000, shape=(1, 7_000)), SimpleNamespace(xp=np)
    context.random = backend_for("cpu").random(3)
    tracemalloc.start()
    try:
        drawn, tries = draw_different(p, context, 1 << 14)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (np.sort(drawn[0]) == np.arange(7_000)).all()
    assert tries[0] > 200_000
    assert peak < tries[0] * 8


@pytest.mark.parametrize(
    ("attrs", "sentence"),
    [
        ({"range_max": 5}, "expected (batch, n), got None"),
        ({"range_max": 5, "shape": (2, 6)}, "expected at most range_max = 5 classes a row, got 6"),
        ({"range_max": 0, "shape": (2, 1)}, "expected a number greater than or equal to 1, got 0"),
    ],
)
def test_classes_that_there_are_not(attrs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        draw("_sample_unique_zipfian", attrs)
    assert sentence in str(caught.value)


def test_many_numbers_are_counted_in_pieces() -> None:
    data = np.random.default_rng(0).normal(0, 3, 2 * INDEX_PIECE + 5).astype("float32")
    data[:3] = 4, -4, np.nan
    counts, edges = draw("_histogram", {"bin_cnt": 37, "range": "(-4, 4)"}, [data])
    np.testing.assert_array_equal(counts, np.histogram(data[~np.isnan(data)], edges)[0])


@pytest.mark.parametrize(
    ("inputs", "attrs", "sentence"),
    [
        ({"data": (3,)}, {"bin_cnt": 4}, "'range': expected (left, right), left at most right, got None"),
        ({"data": (3,)}, {"bin_cnt": 4, "range": (2, 1)}, "left at most right, got (2.0, 1.0)"),
        ({"data": (3,)}, {"bin_cnt": 0, "range": (0, 1)}, "'bin_cnt': expected at least 1, got 0"),
        ({"data": (3,), "bins": (1,)}, {}, "bins: expected at least 2 edges, got 1"),
        ({"data": (3,), "bins": (2, 2)}, {}, "expected 1 dimensions, got (2, 2)"),
        ({"data": (3,), "bins": Arg((3,), values=[0, 2, 1])}, {}, "expected ascending edges"),
    ],
)
def test_bins_that_are_none(inputs: Any, attrs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        Run(Case("_histogram", inputs, attrs), "float32", backend_for("cpu")).forward()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "attrs", "sentence"),
    [
        ("_ravel_multi_index", (3, 4), {"shape": (7, 6)}, "expected (2, ?), got (3, 4)"),
        ("_ravel_multi_index", (3,), {"shape": (7, 6, 2)}, "expected 2 dimensions, got (3,)"),
        (
            "_unravel_index",
            (3,),
            {},
            "shape: expected sizes of at least 1, the first one -1 if it is not known, got None",
        ),
        ("_unravel_index", (3,), {"shape": (7, 0)}, "shape: expected sizes of at least 1"),
    ],
)
def test_positions_of_no_array(name: str, shape: Any, attrs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        Run(Case(name, {"data": shape}, attrs), "float32", backend_for("cpu")).forward()
    assert sentence in str(caught.value)
