"""Poisson and negative binomial numbers on a GPU, in double precision: a thread makes one of its sub-stream.

A Poisson number of a mean below 10 is found by going up its distribution function until that is above a uniform number
(one word). From 10 on it is Hörmann's transformed rejection: an attempt is a block's first two words, and three in four
or more succeed. A negative binomial number is a Poisson number whose mean is a gamma number: the attempts go on where
gamma's end.

Hörmann, "The Transformed Rejection Method for Generating Poisson Random Variables" (1993), algorithm PTRS.
"""

from __future__ import annotations

from typing import Any

from ..random.distributions import unusable
from ..random.table import Distribution
from .random_draws import declare, one_a_block
from .random_gamma import STANDARD_GAMMA

__all__ = ["GENERALIZED", "GREATEST_MEAN", "NEGATIVE_BINOMIAL", "POISSON"]

GREATEST_MEAN = 2.0**63 - 10 * 2.0**31.5
"""The greatest mean that NumPy draws."""
_POISSON = f"""
// The logarithm of mean^k exp(-mean) / k!: from 16 on with Stirling's series for k!, whose next term is below 1e-10.
__device__ double log_chance(double k, double mean) {{
  if (k < 16) return k * log(mean) - mean - lgamma(k + 1);
  const double part = (mean - k) / k, square = 1 / (k * k);
  const double rest = (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260))) / k;
  return k * (log1p(part) - part) - 0.5 * log(6.283185307179586 * k) - rest;
}}
__device__ double poisson(SubStream &stream, double mean) {{
  if (mean == 0) return 0;
  if (!(mean > 0 && mean <= {GREATEST_MEAN!r})) return nan("");
  if (mean < 10) {{
    double rest = from_zero(stream.next().words[0]), chance = exp(-mean), k = 0;
    while (rest >= chance && k < 200) {{
      rest -= chance;
      k += 1;
      chance *= mean / k;
    }}
    return k;
  }}
  const double b = 0.931 + 2.53 * sqrt(mean), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), sure = 0.9277 - 3.6224 / (b - 2);
  while (true) {{
    const Philox drawn = stream.next();
    const double u = from_zero(drawn.words[0]) - 0.5, v = above_zero(drawn.words[1]);
    const double us = 0.5 - fabs(u), k = floor((2 * a / us + b) * u + mean + 0.43);
    if (us >= 0.07 && v <= sure) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    if (log(v * inverse_alpha / (a / (us * us) + b)) <= log_chance(k, mean)) return k;
  }}
}}
"""
"""poisson: NaN where mean is none that can be drawn."""
_MIXED = (
    STANDARD_GAMMA
    + _POISSON
    + """
__device__ double failures(SubStream &stream, double k, double p) {
  return p > 0 && p <= 1 ? poisson(stream, standard_gamma(stream, k) * ((1 - p) / p)) : nan("");
}
__device__ double dispersed(SubStream &stream, double mean, double dispersion) {
  // As good as none, and no number has its inverse.
  if (dispersion >= 0 && dispersion < 1e-300) return poisson(stream, mean);
  return mean >= 0 ? poisson(stream, standard_gamma(stream, 1 / dispersion) * dispersion * mean) : nan("");
}
"""
)
POISSON = one_a_block("poisson", "A(poisson(stream, a))", _POISSON)
NEGATIVE_BINOMIAL = one_a_block("negative_binomial", "A(failures(stream, a, b))", _MIXED)
GENERALIZED = one_a_block("generalized_negative_binomial", "A(dispersed(stream, a, b))", _MIXED)


def _check_mean(row: Distribution, p: Any) -> None:
    if p.lam > GREATEST_MEAN:
        raise unusable(row, p, "numbers that can be drawn")


declare("poisson", POISSON, _check_mean)
declare("negative_binomial", NEGATIVE_BINOMIAL)
declare("generalized_negative_binomial", GENERALIZED)
