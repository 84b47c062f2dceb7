"""The distributions of mx.np's random operators, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.ndarray import _internal

COUNT = 20_000
EULER = 0.5772156649015329
MOMENTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "_npi_normal": ({"loc": 1, "scale": 2}, 1, 4),
    "_npi_uniform": ({"low": -1, "high": 2}, 0.5, 9 / 12),
    "_npi_logistic": ({"loc": 1, "scale": 2}, 1, 4 * np.pi**2 / 3),
    "_npi_gumbel": ({"loc": 1, "scale": 2}, 1 + 2 * EULER, 4 * np.pi**2 / 6),
    "_npi_exponential": ({"scale": 2}, 2, 4),
    "_npi_rayleigh": ({"scale": 2}, 2 * (np.pi / 2) ** 0.5, (4 - np.pi) / 2 * 4),
    "_npi_gamma": ({"shape": 2, "scale": 3}, 6, 18),
    "_npi_bernoulli": ({"prob": 0.3, "logit": None, "is_logit": False}, 0.3, 0.21),
}
"""By operator: its numbers, the mean and the variance."""


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_variance(embedded: None, name: str) -> None:
    numbers, mean, variance = MOMENTS[name]
    mx.random.seed(3)
    drawn = getattr(_internal, name)(**numbers, size=(COUNT,)).asnumpy()
    # Five deviations of the mean of COUNT numbers; the variance's own is within a tenth for all of these.
    assert drawn.mean() == pytest.approx(mean, abs=5 * (variance / COUNT) ** 0.5)
    assert drawn.var() == pytest.approx(variance, rel=0.1)


def test_gradients_flow_to_arrays_of_parameters(embedded: None) -> None:
    """out = loc + scale * noise: gloc = gout, gscale = gout * noise."""
    loc, scale = mx.sym.Variable("loc"), mx.sym.Variable("scale")
    out = mx.sym._internal._npi_normal(loc, scale, loc=None, scale=None)
    args = {"loc": mx.nd.array([1.0, 2.0]), "scale": mx.nd.array([0.5, 3.0])}
    grads = {name: mx.nd.zeros(2) for name in args}
    executor = out.bind(mx.cpu(), args, grads)
    (drawn,) = executor.forward(is_train=True)
    executor.backward(mx.nd.array([1.0, 10.0]))
    noise = (drawn.asnumpy() - [1, 2]) / [0.5, 3]
    np.testing.assert_allclose(grads["loc"].asnumpy(), [1, 10])
    np.testing.assert_allclose(grads["scale"].asnumpy(), noise * [1, 10], rtol=1e-5)  # float32, divided back


@pytest.mark.parametrize(
    ("name", "attrs", "sentence"),
    [
        ("_npi_bernoulli", {"prob": 1.5, "logit": None, "is_logit": False}, "prob: expected from 0 to 1, got 1.5"),
        ("_npi_bernoulli", {"prob": None, "logit": None, "is_logit": True}, "logit: expected a number, got None"),
        ("_npi_gamma", {"shape": 0, "scale": 1}, "expected shape and scale above 0, got 0.0 and 1.0"),
        ("_npi_gamma", {"shape": None, "scale": 1}, "parameter 'shape': expected a number, got 'None'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(embedded: None, name: str, attrs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(mx.MXNetError, match=sentence):
        getattr(_internal, name)(**attrs, size=(2,)).asnumpy()
