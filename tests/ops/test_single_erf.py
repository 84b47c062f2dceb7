"""erf of float32: near the function everywhere, 1 and -1 where that rounds to them, and what is not a number."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import opbox as mx

ULPS = 6
"""Of the rational function in float32, as its module says."""


@pytest.mark.parametrize("sign", [1, -1])
def test_it_is_near_erf_everywhere(sign: int) -> None:
    """Every 997th number of float32 up to 5, subnormal ones too."""
    x = sign * np.arange(0, np.float32(5).view(np.uint32), 997, dtype=np.uint32).view(np.float32)
    expected = scipy.special.erf(x.astype(np.float64))
    error = np.abs(mx.nd.erf(mx.nd.array(x)).asnumpy() - expected)
    assert (error <= ULPS * np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)).all()
    assert error.max() < 3.6e-7


def test_far_out_it_is_one() -> None:
    x = np.array([4, 4.5, 100, 1e30, np.inf, -4, -17, -np.inf, 0.0, -0.0, np.nan], np.float32)
    y = mx.nd.erf(mx.nd.array(x)).asnumpy()
    np.testing.assert_array_equal(y, np.array([1, 1, 1, 1, 1, -1, -1, -1, 0, 0, np.nan], np.float32))
    assert np.signbit(y[-2])


def test_gelu_is_zero_far_below() -> None:
    x = mx.nd.array(np.array([-8, -100, -1e30], np.float32))
    assert not mx.nd.LeakyReLU(x, act_type="gelu").asnumpy().any()


def test_double_precision_is_scipys() -> None:
    x = np.linspace(-6, 6, 1001)
    y = mx.nd.erf(mx.nd.array(x, dtype="float64")).asnumpy()
    np.testing.assert_array_equal(y, scipy.special.erf(x))
