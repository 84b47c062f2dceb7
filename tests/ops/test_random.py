"""Random operators: the right distribution, the same numbers from the same seed, others from another.

A sample's mean lies within 5 of its standard errors and the largest distance of its distribution function (KS) below
2.2 / sqrt(n), which a right generator fails less than once in ten thousand seeds; the seed here is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats as st

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.infer import ShapeList, TypeList
from opbox_ops.random.drawing import AT_ONCE
from opbox_ops.random.table import TABLE
from opbox_protocol.errors import BadRequestError
from opbox_protocol.mxnet import numpy_dtype

from .harness import write_outputs

N = 20_000


def run(name: str, attrs: dict[str, Any], inputs: Sequence[np.ndarray] = (), *, source: Any = None) -> list[np.ndarray]:
    """The operator's outputs on the CPU, drawn from `source` (seed 42 by default)."""
    op, backend = registry.get(name), backend_for("cpu")
    params = op.parse(attrs)
    shapes = ShapeList([a.shape for a in inputs], "input"), ShapeList([None] * op.num_outputs(params), "output")
    types = TypeList([a.dtype for a in inputs], "input"), TypeList([None] * op.num_outputs(params), "output")
    assert op.shape_rule is not None
    op.shape_rule(params, *shapes)
    op.type_rule(params, *types)
    outputs = [backend.empty(shape, dtype) for shape, dtype in zip(shapes[1], types[1], strict=True)]
    write_outputs(op, params, inputs, outputs, random=source or backend.random(42))
    return outputs


CONTINUOUS = [
    ("_random_uniform", {"low": -2, "high": 3}, st.uniform(-2, 5)),
    ("_random_normal", {"loc": 1.5, "scale": 2}, st.norm(1.5, 2)),
    ("_random_gamma", {"alpha": 2.5, "beta": 0.5}, st.gamma(2.5, scale=0.5)),
    ("_random_exponential", {"lam": 4}, st.expon(scale=0.25)),
]
DISCRETE = [
    ("_random_poisson", {"lam": 3.5}, st.poisson(3.5)),
    ("_random_negative_binomial", {"k": 3, "p": 0.4}, st.nbinom(3, 0.4)),
    ("_random_generalized_negative_binomial", {"mu": 2.0, "alpha": 0.5}, st.nbinom(2, 0.5)),
    ("_random_generalized_negative_binomial", {"mu": 2.0, "alpha": 0.0}, st.poisson(2)),
    ("_random_randint", {"low": -3, "high": 5}, st.randint(-3, 5)),
]


def check(sample: np.ndarray, wanted: Any, *, continuous: bool) -> None:
    values = sample.astype("float64").ravel()
    error = wanted.std() / np.sqrt(values.size)
    assert abs(values.mean() - wanted.mean()) < 5 * error
    assert abs(values.var() / wanted.var() - 1) < 0.1
    low, high = wanted.support()
    assert values.min() >= low
    assert values.max() <= high
    if continuous:
        assert st.kstest(values, wanted.cdf).statistic < 2.2 / np.sqrt(values.size)
    else:
        points = np.arange(values.min(), values.max() + 1)
        fractions = (values[:, None] <= points).mean(axis=0)
        assert np.abs(fractions - wanted.cdf(points)).max() < 2.2 / np.sqrt(values.size)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "attrs", "wanted"), CONTINUOUS)
def test_continuous(name: str, attrs: dict[str, Any], wanted: Any, dtype: str) -> None:
    (sample,) = run(name, {**attrs, "shape": (N,), "dtype": dtype})
    assert sample.dtype == numpy_dtype(dtype)
    # Numbers of 16 bits are too coarse for a continuous comparison.
    check(sample.astype(float), wanted, continuous=sample.itemsize > 2)


@pytest.mark.parametrize(("name", "attrs", "wanted"), DISCRETE)
def test_discrete(name: str, attrs: dict[str, Any], wanted: Any) -> None:
    (sample,) = run(name, {**attrs, "shape": (100, N // 100)})
    check(sample, wanted, continuous=False)


@pytest.mark.parametrize(("name", "attrs", "wanted"), [*CONTINUOUS, *DISCRETE])
def test_seeds(name: str, attrs: dict[str, Any], wanted: Any) -> None:
    attrs = {**attrs, "shape": (50,)}
    backend = backend_for("cpu")
    source = backend.random(7)
    first, second = run(name, attrs, source=source)[0], run(name, attrs, source=source)[0]
    assert (first != second).any()  # the source moves on
    assert (run(name, attrs, source=backend.random(7))[0] == first).all()
    assert (run(name, attrs, source=backend.random(8))[0] != first).any()


@pytest.mark.parametrize("name", ["uniform", "normal", "gamma", "exponential", "poisson"])
def test_like_draws_the_same_numbers(name: str) -> None:
    (plain,) = run(f"_random_{name}", {"shape": (30,)})
    (like,) = run(f"_random_{name}_like", {}, [np.zeros(30, "float32")])
    assert (plain == like).all()


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("_sample_uniform", ([-1.0, 2.0], [1.0, 5.0]), (st.uniform(-1, 2), st.uniform(2, 3))),
        ("_sample_normal", ([-1.0, 2.0], [1.0, 0.5]), (st.norm(-1, 1), st.norm(2, 0.5))),
        ("_sample_gamma", ([1.0, 2.0], [1.0, 0.5]), (st.gamma(1), st.gamma(2, scale=0.5))),
        ("_sample_exponential", ([1.0, 4.0],), (st.expon(), st.expon(scale=0.25))),
    ],
)
def test_each_element_has_its_own_distribution(name: str, params: Any, wanted: Any) -> None:
    (sample,) = run(name, {"shape": (N,)}, [np.array(values, "float32") for values in params])
    assert sample.shape == (2, N)
    for row, one in zip(sample, wanted, strict=True):
        check(row, one, continuous=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [5, AT_ONCE + 3])
def test_numbers_are_those_of_numpy_generators(dtype: str, count: int) -> None:
    def generator() -> np.random.Generator:
        return np.random.Generator(np.random.Philox(42))

    attrs = {"shape": (count,), "dtype": dtype}
    (drawn,) = run("_random_exponential", {"lam": 0.3, **attrs})
    np.testing.assert_array_equal(drawn, generator().exponential(1 / 0.3, count).astype(dtype))
    (drawn,) = run("_random_gamma", {"alpha": 0.7, "beta": 1.9, **attrs})
    np.testing.assert_array_equal(drawn, generator().gamma(0.7, 1.9, count).astype(dtype))
    rates = np.array([0.3, 5], "float32")
    (drawn,) = run("_sample_exponential", attrs, [rates])
    np.testing.assert_array_equal(drawn, generator().exponential(1 / rates[:, None], (2, count)).astype(dtype))


@pytest.mark.parametrize("name", ["uniform", "gamma", "exponential", "poisson"])
def test_no_parameters_are_no_numbers(name: str) -> None:
    inputs = [np.empty((0,), "float32")] * (2 if name in ("uniform", "gamma") else 1)
    assert run(f"_sample_{name}", {"shape": (3,)}, inputs)[0].shape == (0, 3)


def test_multinomial() -> None:
    chances = np.array([[0.1, 0.0, 0.9], [0.5, 0.25, 0.25]], "float32")
    drawn, logs = run("_sample_multinomial", {"shape": (N,), "get_prob": True}, [chances])
    assert drawn.dtype == np.int32
    for row, chance in zip(drawn, chances, strict=True):
        frequencies = np.bincount(row, minlength=3) / N
        assert np.abs(frequencies - chance).max() < 5 * 0.5 / np.sqrt(N)
    assert not (drawn[0] == 1).any()
    np.testing.assert_allclose(logs, np.log(np.take_along_axis(chances, drawn, 1)), rtol=1e-6)


def test_shuffle_moves_whole_rows_into_any_order() -> None:
    data = np.arange(12, dtype="float32").reshape(6, 2)
    source = backend_for("cpu").random(3)
    firsts = []
    for _ in range(600):
        (shuffled,) = run("_shuffle", {}, [data], source=source)
        assert (shuffled[:, 1] == shuffled[:, 0] + 1).all()
        assert (np.sort(shuffled[:, 0]) == data[:, 0]).all()
        firsts.append(shuffled[0, 0] / 2)
    counts = np.bincount(np.array(firsts, int), minlength=6)
    assert np.abs(counts - 100).max() < 5 * np.sqrt(100)


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("gamma", ([-1.0], [1.0]), "alpha, beta: expected alpha and beta above 0 everywhere"),
        ("gamma", ([1.0], [-1.0]), "alpha, beta: expected alpha and beta above 0 everywhere"),
        ("exponential", ([-1.0],), "lam: expected lam above 0 everywhere"),
        ("exponential", ([1.0, -np.inf],), "lam: expected lam above 0 everywhere"),
        ("poisson", ([2.0, -1.0],), "lam: expected lam of at least 0 everywhere"),
        ("poisson", ([np.nan],), "lam: expected lam of at least 0 everywhere"),
        ("negative_binomial", ([3.0], [2.0]), "k, p: expected k above 0 and p above 0 and at most 1 everywhere"),
        ("generalized_negative_binomial", ([-1.0], [0.5]), "mu, alpha: expected mu and alpha of at least 0 everywhere"),
    ],
)
def test_arrays_of_numbers_that_no_distribution_has(name: str, params: Any, sentence: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        run(f"_sample_{name}", {"shape": (3,)}, [np.array(numbers, "float32") for numbers in params])
    assert sentence in str(caught.value)


def test_without_dispersion_a_row_is_poisson_beside_one_that_is_not() -> None:
    arrays = [np.array([2.0, 2.0], "float32"), np.array([0.0, 0.5], "float32")]
    (sample,) = run("_sample_generalized_negative_binomial", {"shape": (N,)}, arrays)
    check(sample[0], st.poisson(2), continuous=False)
    check(sample[1], st.nbinom(2, 0.5), continuous=False)


@pytest.mark.parametrize(
    ("name", "attrs", "wanted"),
    [
        ("_random_gamma", {"alpha": 0.01, "beta": 3.0}, st.gamma(0.01, scale=3.0)),
        ("_random_gamma", {"alpha": 5e4, "beta": 1e-3}, st.gamma(5e4, scale=1e-3)),
        ("_random_exponential", {"lam": 1e-4}, st.expon(scale=1e4)),
        ("_random_uniform", {"low": 3.0, "high": 3.0 + 2**-10}, st.uniform(3, 2**-10)),
        ("_random_normal", {"loc": 1e3, "scale": 1e-1}, st.norm(1e3, 1e-1)),
    ],
)
def test_parameters_far_out(name: str, attrs: dict[str, Any], wanted: Any) -> None:
    (sample,) = run(name, {**attrs, "shape": (N,), "dtype": "float64"})
    assert st.kstest(sample, wanted.cdf).statistic < 2.2 / np.sqrt(N)


@pytest.mark.parametrize(
    ("name", "attrs", "wanted"),
    [
        ("_random_poisson", {"lam": 1e-3}, st.poisson(1e-3)),
        ("_random_poisson", {"lam": 1e5}, st.poisson(1e5)),
        ("_random_negative_binomial", {"k": 1, "p": 1.0}, None),
        ("_random_negative_binomial", {"k": 200, "p": 0.02}, st.nbinom(200, 0.02)),
        ("_random_generalized_negative_binomial", {"mu": 0.0, "alpha": 1.0}, None),
        ("_random_generalized_negative_binomial", {"mu": 50.0, "alpha": 1e-3}, st.nbinom(1e3, 1 / 1.05)),
        ("_random_randint", {"low": 2**30, "high": 2**30 + 1}, None),
    ],
)
def test_counts_far_out(name: str, attrs: dict[str, Any], wanted: Any) -> None:
    more = {} if name == "_random_randint" else {"dtype": "float64"}
    (sample,) = run(name, {**attrs, "shape": (N,), **more})
    if wanted is None:  # one number alone is possible
        assert (sample == attrs.get("low", 0)).all()
        return
    assert abs(sample.mean() - wanted.mean()) < 5 * wanted.std() / np.sqrt(N)
    points = np.quantile(sample, [0.05, 0.25, 0.5, 0.75, 0.95])
    fractions = (sample[:, None] <= points).mean(axis=0)
    assert np.abs(fractions - wanted.cdf(points)).max() < 2.2 / np.sqrt(N)


@pytest.mark.parametrize("name", [f"_sample_{row.name}" for row in TABLE])
def test_parameters_of_many_axes(name: str) -> None:
    """NumPy's generators broadcast over 32 axes at most, an array may have more."""
    params = np.full((2, *(1,) * 14), 0.5, np.float32)
    attrs = {"shape": str((*(1,) * 20, 500))}
    (out,) = run(name, attrs, [params for _ in registry.get(name).inputs])
    assert out.shape == (2, *(1,) * 34, 500)
    (flat,) = run(name, {"shape": "(500,)"}, [params.reshape(2) for _ in registry.get(name).inputs])
    np.testing.assert_array_equal(out.reshape(2, 500), flat)
