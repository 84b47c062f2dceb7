"""_random_pdf_<name>: probabilities and densities of samples, one table of distributions.

sample (…, *draws), parameters (…) each, out (…, *draws): the density at every number of sample under the parameters of
its element. With is_log the density's logarithm. Numbers outside the distribution's support are not looked for: out is
what the formula gives there.

    uniform                        1 / (high - low)
    normal                         exp(-((x - mu) / sigma)^2 / 2) / (sigma * sqrt(2 pi))
    gamma                          beta^alpha * x^(alpha - 1) * exp(-beta * x) / Gamma(alpha)         (beta is a rate)
    exponential                    lam * exp(-lam * x)
    poisson                        lam^x * exp(-lam) / x!
    negative_binomial              Gamma(x + k) / (x! * Gamma(k)) * p^k * (1 - p)^x
    generalized_negative_binomial  the same with k = 1 / alpha, p = 1 / (alpha * mu + 1)
    dirichlet                      Gamma(sum(alpha)) / prod(Gamma(alpha)) * prod(x^(alpha - 1)), over the last axis of
                                   sample (…, *draws, k) and alpha (…, k); out (…, *draws)

With L the logarithm, the gradient of x is gout * dL/dx, times the density itself without is_log; a parameter's is
summed over its draws. Counts (poisson and the negative binomials) have no gradient of x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Any, TypeAlias

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, all_same_type, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Params
from ..registry import register, register_backward

ALLOCATES = "a density's logarithm is several terms, and float16 is computed in float32"
Formula: TypeAlias = "Callable[..., Array]"
Slopes: TypeAlias = "Callable[..., Sequence[Array | None]]"


class DensityParams(Params):
    is_log: Bool = Field(False, description="Give the density's logarithm.")


@dataclass(frozen=True)
class Density:
    """A row of the table.

    Attributes:
        name: as it appears in the operator's name.
        inputs: the parameters' names.
        logarithm: `(ctx, x, *params)` to the density's logarithm; of fewer elements where it does not depend on x.
        slopes: the same arguments to its derivatives by x and each parameter; None where there is none.
        vector: whether the last axis of x and of the parameters is one outcome.
    """

    name: str
    inputs: tuple[str, ...]
    logarithm: Formula
    slopes: Slopes
    vector: bool = False


def _uniform(ctx: OpContext, x: Array, low: Array, high: Array) -> Array:
    return -ctx.xp.log(high - low)


def _uniform_slopes(ctx: OpContext, x: Array, low: Array, high: Array) -> Sequence[Array | None]:
    slope = 1 / (high - low)
    return None, slope, -slope


def _normal(ctx: OpContext, x: Array, mu: Array, sigma: Array) -> Array:
    return -0.5 * ((x - mu) / sigma) ** 2 - ctx.xp.log(sigma) - 0.5 * log(2 * pi)


def _normal_slopes(ctx: OpContext, x: Array, mu: Array, sigma: Array) -> Sequence[Array | None]:
    z = (x - mu) / sigma
    return -z / sigma, z / sigma, (z * z - 1) / sigma


def _gamma(ctx: OpContext, x: Array, alpha: Array, beta: Array) -> Array:
    log_ = ctx.xp.log
    return alpha * log_(beta) + (alpha - 1) * log_(x) - beta * x - ctx.special.gammaln(alpha)


def _gamma_slopes(ctx: OpContext, x: Array, alpha: Array, beta: Array) -> Sequence[Array | None]:
    by_alpha = ctx.xp.log(beta) + ctx.xp.log(x) - ctx.special.digamma(alpha)
    return (alpha - 1) / x - beta, by_alpha, alpha / beta - x


def _exponential(ctx: OpContext, x: Array, lam: Array) -> Array:
    return ctx.xp.log(lam) - lam * x


def _exponential_slopes(ctx: OpContext, x: Array, lam: Array) -> Sequence[Array | None]:
    return ctx.xp.zeros_like(x) - lam, 1 / lam - x


def _poisson(ctx: OpContext, x: Array, lam: Array) -> Array:
    return x * ctx.xp.log(lam) - lam - ctx.special.gammaln(x + 1)


def _poisson_slopes(ctx: OpContext, x: Array, lam: Array) -> Sequence[Array | None]:
    return None, x / lam - 1


def _negative_binomial(ctx: OpContext, x: Array, k: Array, p: Array) -> Array:
    gammaln = ctx.special.gammaln
    chosen = gammaln(x + k) - gammaln(x + 1) - gammaln(k)
    return chosen + k * ctx.xp.log(p) + x * ctx.xp.log1p(-p)


def _negative_binomial_slopes(ctx: OpContext, x: Array, k: Array, p: Array) -> Sequence[Array | None]:
    digamma = ctx.special.digamma
    return None, digamma(x + k) - digamma(k) + ctx.xp.log(p), k / p - x / (1 - p)


def _generalized(ctx: OpContext, x: Array, mu: Array, alpha: Array) -> Array:
    return _negative_binomial(ctx, x, 1 / alpha, 1 / (alpha * mu + 1))


def _generalized_slopes(ctx: OpContext, x: Array, mu: Array, alpha: Array) -> Sequence[Array | None]:
    p = 1 / (alpha * mu + 1)
    _, by_k, by_p = _negative_binomial_slopes(ctx, x, 1 / alpha, p)
    assert by_k is not None
    assert by_p is not None
    return None, -alpha * p * p * by_p, -by_k / alpha**2 - mu * p * p * by_p


def _dirichlet(ctx: OpContext, x: Array, alpha: Array) -> Array:
    gammaln = ctx.special.gammaln
    return ((alpha - 1) * ctx.xp.log(x)).sum(-1) + gammaln(alpha.sum(-1)) - gammaln(alpha).sum(-1)


def _dirichlet_slopes(ctx: OpContext, x: Array, alpha: Array) -> Sequence[Array | None]:
    digamma = ctx.special.digamma
    return (alpha - 1) / x, ctx.xp.log(x) + digamma(alpha.sum(-1, keepdims=True)) - digamma(alpha)


TABLE = (
    Density("uniform", ("low", "high"), _uniform, _uniform_slopes),
    Density("normal", ("mu", "sigma"), _normal, _normal_slopes),
    Density("gamma", ("alpha", "beta"), _gamma, _gamma_slopes),
    Density("exponential", ("lam",), _exponential, _exponential_slopes),
    Density("poisson", ("lam",), _poisson, _poisson_slopes),
    Density("negative_binomial", ("k", "p"), _negative_binomial, _negative_binomial_slopes),
    Density("generalized_negative_binomial", ("mu", "alpha"), _generalized, _generalized_slopes),
    Density("dirichlet", ("alpha",), _dirichlet, _dirichlet_slopes, vector=True),
)


def _infer_shape(row: Density, ins: ShapeList, outs: ShapeList) -> None:
    params = None
    for _ in range(2):
        for i in range(1, len(ins)):
            params = ins.merge(i, params)
    tail = 1 if row.vector else 0
    sample = ins[0]
    if sample is not None and len(sample) < tail:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    if sample is None and outs[0] is not None:
        sample = ins.merge(0, (*outs[0], *(params[-1:] if params else (-1,)))) if row.vector else ins.merge(0, outs[0])
    if sample is None:
        return
    if params is not None:
        batch, outcome = (params[:-1], params[-1:]) if row.vector else (params, ())
        if len(params) < tail or len(batch) > len(sample) - tail:
            raise ShapeError(
                f"expected first axes as the parameters' {show_shape(params)}, got {show_shape(sample)}",
                side="input",
                index=0,
            )
        draws = (-1,) * (len(sample) - tail - len(batch))
        sample = ins.merge(0, (*batch, *draws, *outcome))
        assert sample is not None
        for i in range(1, len(ins)):
            ins.merge(i, (*sample[: len(batch)], *sample[len(sample) - tail :]))
    out = outs.merge(0, sample[: len(sample) - tail])
    assert out is not None
    ins.merge(0, (*out, *sample[len(sample) - tail :]))


def _infer_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, outs)
    for slots in (ins, outs):
        for i in range(len(slots)):
            slots.only(i, "float16", "float32", "float64")


def _wide(row: Density, inputs: Arrays) -> list[Array]:
    """sample and the parameters, with axes for the draws, in float32 at least."""
    sample, *params = (array.astype("float32") if array.dtype.char == "e" else array for array in inputs)
    if row.vector:
        ones = (1,) * (sample.ndim - params[0].ndim)
        return [sample, *(param.reshape(*param.shape[:-1], *ones, param.shape[-1]) for param in params)]
    ones = (1,) * (sample.ndim - params[0].ndim)
    return [sample, *(param.reshape(*param.shape, *ones) for param in params)]


def _declare(row: Density) -> None:
    name = f"_random_pdf_{row.name}"
    op = register(
        name,
        DensityParams,
        inputs=("sample", *row.inputs),
        aliases=(name[1:],),
        doc=f"Densities of the {row.name} distribution.",
    )
    backward = register_backward(f"_backward{name}", DensityParams, outputs=("sample", *row.inputs))
    op.infer_type(_infer_type)

    @op.infer_shape
    def _(p: DensityParams, ins: ShapeList, outs: ShapeList) -> None:
        _infer_shape(row, ins, outs)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(backward.name, node, [ograds[0], *node.inputs, Entry(node)])

    @op.compute(allocates=ALLOCATES)
    def _(p: DensityParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        logarithm = row.logarithm(ctx, *_wide(row, inputs))
        outputs[0][...] = logarithm if p.is_log else ctx.xp.exp(logarithm)

    @backward.compute(allocates=ALLOCATES)
    def _(p: DensityParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        gout, *arrays, out = inputs
        factor = gout if p.is_log else gout * out
        factor = factor[..., None] if row.vector else factor
        wide = _wide(row, arrays)
        # The draws are the axes of sample that the parameters have not got.
        first = arrays[1].ndim - (1 if row.vector else 0)
        draws = tuple(range(first, arrays[0].ndim - (1 if row.vector else 0)))
        for k, (slope, target) in enumerate(zip(row.slopes(ctx, *wide), outputs, strict=True)):
            if target is None:
                continue
            if slope is None:
                target.fill(0)
            else:
                slope = slope * factor
                target[...] = slope if k == 0 else slope.sum(axis=draws)


for _row in TABLE:
    _declare(_row)
