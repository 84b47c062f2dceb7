"""Tests of distributions: right generators pass, wrong ones do not."""

from __future__ import annotations

import re
from statistics import NormalDist

import numpy as np
import pytest

import opbox as mx
from opbox.test_utils import (
    chi_square_check,
    gen_buckets_probs_with_ppf,
    mean_check,
    var_check,
    verify_generator,
)


def normal_quantile(p: float) -> float:
    return {0: -np.inf, 1: np.inf}.get(p) or NormalDist().inv_cdf(p)


def normal(count: int) -> mx.nd.NDArray:
    return mx.nd.random.normal(shape=(count,))


@pytest.fixture(autouse=True)
def _seed() -> None:
    mx.random.seed(3)


def test_mean_and_variance() -> None:
    assert mean_check(normal, 0, 1, nsamples=10000)
    assert not mean_check(normal, 0.2, 1, nsamples=10000)
    assert var_check(normal, 1, nsamples=10000)
    assert not var_check(normal, 1.2, nsamples=10000)


def test_a_continuous_distribution() -> None:
    buckets, probs = gen_buckets_probs_with_ppf(normal_quantile, 5)
    assert buckets[0][0] == -np.inf
    assert probs == [0.2] * 5
    assert len(verify_generator(normal, buckets, probs, nsamples=2000, nrepeat=3)) == 3
    with pytest.raises(
        AssertionError, match=re.escape("generator: expected p over 0.05 in 20% of 3 tries, got it in 0")
    ):
        verify_generator(lambda n: normal(n) * 2, buckets, probs, nsamples=2000, nrepeat=3)


def test_a_discrete_distribution() -> None:
    p, observed, expected = chi_square_check(
        lambda n: mx.nd.random.randint(0, 3, shape=(n,)), [0, 1, 2], [1 / 3] * 3, nsamples=3000
    )
    assert p > 0.001
    assert observed.sum() == 3000
    np.testing.assert_allclose(expected, 1000)
    assert chi_square_check(lambda n: np.full(n, 7), [0, 1], [0.5, 0.5], nsamples=10)[0] == 0
    with pytest.raises(ValueError, match="probs: expected 2, one for each bucket, got 1"):
        chi_square_check(normal, [0, 1], [1.0])
