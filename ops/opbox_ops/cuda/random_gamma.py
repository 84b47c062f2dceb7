"""Gamma numbers on a GPU: a block of the stream is an attempt, of which 19 in 20 or more succeed.

For alpha of 1 and above, with d = alpha - 1/3, x normal, v = (1 + x / sqrt(9 d))^3 and u uniform: d v is taken where
log(u) < x^2 / 2 + d - d v + d log(v). Below 1 it is such a number of alpha + 1, times w^(1 / alpha) with w uniform.
An attempt has x of its first two words, u of the third; w is the fourth of the first attempt. All in double precision.

Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables" (2000).
"""

from __future__ import annotations

from typing import Any

from ..compute import Arrays, OpContext, Outputs
from ..random.numpy_distributions import gamma
from .random_draws import declare, drawn_by_kernels, launch, one_a_block

__all__ = ["GAMMA", "STANDARD_GAMMA"]

STANDARD_GAMMA = """
__device__ double standard_gamma(SubStream &stream, double alpha) {
  if (alpha == 0) return 0;
  if (!(alpha > 0 && alpha < 1e300)) return nan("");
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3.0, c = 1 / sqrt(9 * d);
  double raised = 1;
  for (bool begins = true;; begins = false) {
    const Philox drawn = stream.next();
    if (begins && alpha < 1) raised = exp(log(above_zero(drawn.words[3])) / alpha);
    const double x = sqrt(-2 * log(above_zero(drawn.words[0]))) * cospi(2 * from_zero(drawn.words[1]));
    const double side = 1 + c * x, v = side * side * side, u = above_zero(drawn.words[2]);
    if (side > 0 && (u < 1 - 0.0331 * x * x * x * x || log(u) < 0.5 * x * x + d * (1 - v + log(v))))
      return d * v * raised;
  }
}
"""
"""standard_gamma: a number of scale 1; NaN where alpha is none."""
GAMMA = one_a_block("gamma", 'A(b >= 0 ? standard_gamma(stream, a) * b : nan(""))', STANDARD_GAMMA)
declare("gamma", GAMMA)


@gamma.compute("gpu", level="generated", accepts=drawn_by_kernels)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    launch(ctx, GAMMA, outputs[0], 1, [p.shape, p.scale])
