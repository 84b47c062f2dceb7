"""Tests the distribution of random numbers, for authors of random operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.errors import MXNetError

from .comparing import host

__all__ = ["chi_square_check", "gen_buckets_probs_with_ppf", "mean_check", "var_check", "verify_generator"]

Buckets: TypeAlias = "Sequence[tuple[float, float]] | Sequence[float]"


def gen_buckets_probs_with_ppf(
    ppf: Callable[[float], float], nbuckets: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """Buckets of equal probability, and their probabilities, from a distribution's quantile function."""
    if nbuckets < 1:
        raise ValueError(f"nbuckets: expected 1 or more, got {nbuckets}")
    edges = [ppf(i / nbuckets) for i in range(nbuckets + 1)]
    return list(pairwise(edges)), [1 / nbuckets] * nbuckets


def mean_check(generator: Callable[[int], Any], mu: float, sigma: float, nsamples: int = 1000000) -> bool:
    """Return whether the mean of generator(nsamples) is within three standard errors of `mu`."""
    mean = host(generator(nsamples)).astype(np.float64).mean()
    return bool(abs(mean - mu) < 3 * sigma / np.sqrt(nsamples))


def var_check(generator: Callable[[int], Any], sigma: float, nsamples: int = 1000000) -> bool:
    """True if the variance of generator(nsamples), of normal numbers, is within three standard errors of sigma ** 2."""
    variance = host(generator(nsamples)).astype(np.float64).var(ddof=1)
    return bool(abs(variance - sigma**2) < 3 * np.sqrt(2 * sigma**4 / (nsamples - 1)))


def chi_square_check(
    generator: Callable[[int], Any], buckets: Buckets, probs: Sequence[float], nsamples: int = 1000000
) -> tuple[float, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pearson's chi-square test of a generator's numbers.

    Args:
        generator: called with a number of samples, gives an array of as many independent ones.
        buckets: (low, high) in ascending order, that cover the distribution; or all values of a discrete one.
        probs: the probability of each.
        nsamples: how many are drawn.

    Returns:
        The p value, how many fell into each bucket, and how many should have.
    """
    try:
        from scipy.stats import chisquare
    except ModuleNotFoundError:
        raise MXNetError("chi_square_check: needs SciPy: pip install scipy") from None
    if len(buckets) != len(probs):
        raise ValueError(f"probs: expected {len(buckets)}, one for each bucket, got {len(probs)}")
    samples = host(generator(nsamples)).reshape(-1)
    if isinstance(buckets[0], tuple | list):
        pairs: Any = buckets  # as the first is one, all are
        edges = np.array([*(low for low, _ in pairs), pairs[-1][1]], np.float64)
        observed = np.histogram(samples, edges)[0]
    else:
        observed = np.array([(samples == value).sum() for value in buckets])
    expected = np.asarray(probs, np.float64) * nsamples
    if observed.sum() != samples.size:
        # What falls outside is against the distribution, which the buckets cover.
        return 0.0, observed, expected
    test = chisquare(observed, expected * observed.sum() / expected.sum())
    return float(test.pvalue), observed, expected


def verify_generator(
    generator: Callable[[int], Any],
    buckets: Buckets,
    probs: Sequence[float],
    nsamples: int = 1000000,
    nrepeat: int = 5,
    success_rate: float = 0.2,
    alpha: float = 0.05,
) -> list[float]:
    """AssertionError unless `chi_square_check` gives more than `alpha` in the share `success_rate` of `nrepeat` tries.

    Returns:
        The p values.
    """
    tries = [chi_square_check(generator, buckets, probs, nsamples) for _ in range(nrepeat)]
    probabilities = [p for p, _, _ in tries]
    passed = sum(p > alpha for p in probabilities)
    if passed < nrepeat * success_rate:
        raise AssertionError(
            f"generator: expected p over {alpha} in {success_rate:.0%} of {nrepeat} tries, got it in {passed}: p "
            f"{probabilities}; in the buckets {tries[-1][1].tolist()} of {tries[-1][2].tolist()}"
        )
    return probabilities
