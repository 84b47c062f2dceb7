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

from dataclasses import dataclass
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, all_same_type, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Params
from ..registry import Op, register, register_backward


class DensityParams(Params):
    is_log: Bool = Field(False, description="Give the density's logarithm.")


@dataclass(frozen=True)
class Density:
    """A row of the table: formulas of the sample `x` and the parameters.

    Attributes:
        name: as it appears in the operator's name.
        inputs: the parameters' names.
        logarithm: the density's logarithm.
        slopes: its derivatives by x and each parameter; that by a count is "0".
    """

    name: str
    inputs: tuple[str, ...]
    logarithm: str
    slopes: tuple[str, ...]


_BY_K = "psi(x + {k}) - psi({k}) + log({p})"
_BY_P = "{k} / {p} - x / (1 - {p})"
_FAILURES = "gammaln(x + {k}) - gammaln(x + 1) - gammaln({k}) + {k} * log({p}) + x * log1p(-{p})"
_PLAIN = {"k": "k", "p": "p"}
_MEAN = {"k": "(1 / alpha)", "p": "(1 / (alpha * mu + 1))"}
_SQUARE = f"square({_MEAN['p']})"

TABLE = (
    Density("uniform", ("low", "high"), "-log(high - low)", ("0", "1 / (high - low)", "-1 / (high - low)")),
    Density(
        "normal",
        ("mu", "sigma"),
        "-0.5 * square((x - mu) / sigma) - log(sigma) - 0.5 * log(2 * pi)",
        ("(mu - x) / sigma / sigma", "(x - mu) / sigma / sigma", "(square((x - mu) / sigma) - 1) / sigma"),
    ),
    Density(
        "gamma",
        ("alpha", "beta"),
        "alpha * log(beta) + (alpha - 1) * log(x) - beta * x - gammaln(alpha)",
        ("(alpha - 1) / x - beta", "log(beta) + log(x) - psi(alpha)", "alpha / beta - x"),
    ),
    Density("exponential", ("lam",), "log(lam) - lam * x", ("-lam", "1 / lam - x")),
    Density("poisson", ("lam",), "x * log(lam) - lam - gammaln(x + 1)", ("0", "x / lam - 1")),
    Density(
        "negative_binomial",
        ("k", "p"),
        _FAILURES.format(**_PLAIN),
        ("0", _BY_K.format(**_PLAIN), _BY_P.format(**_PLAIN)),
    ),
    Density(
        "generalized_negative_binomial",
        ("mu", "alpha"),
        _FAILURES.format(**_MEAN),
        (
            "0",
            f"-alpha * {_SQUARE} * ({_BY_P})".format(**_MEAN),
            f"-({_BY_K}) / square(alpha) - mu * {_SQUARE} * ({_BY_P})".format(**_MEAN),
        ),
    ),
)
DIRICHLET = "dirichlet"


def _infer_shape(vector: bool, ins: ShapeList, outs: ShapeList) -> None:
    params = None
    for _ in range(2):
        for i in range(1, len(ins)):
            params = ins.merge(i, params)
    tail = 1 if vector else 0
    sample = ins[0]
    if sample is not None and len(sample) < tail:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    if sample is None and outs[0] is not None:
        sample = ins.merge(0, (*outs[0], *(params[-1:] if params else (-1,)))) if vector else ins.merge(0, outs[0])
    if sample is None:
        return
    if params is not None:
        batch, outcome = (params[:-1], params[-1:]) if vector else (params, ())
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


def _register(name: str, inputs: tuple[str, ...]) -> tuple[Op, Op]:
    """The operator of a distribution and its backward operator, which reads gout, the inputs and out."""
    op = register(
        f"_random_pdf_{name}",
        DensityParams,
        inputs=("sample", *inputs),
        aliases=(f"random_pdf_{name}",),
        doc=f"Densities of the {name} distribution.",
    )
    backward = register_backward(f"_backward_random_pdf_{name}", DensityParams, outputs=("sample", *inputs))
    op.infer_type(_infer_type)

    @op.infer_shape
    def _(p: DensityParams, ins: ShapeList, outs: ShapeList) -> None:
        _infer_shape(name == DIRICHLET, ins, outs)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(backward.name, node, [ograds[0], *node.inputs, Entry(node)])

    return op, backward


def _declare(row: Density) -> None:
    op, backward = _register(row.name, row.inputs)
    read, first = ("x", *row.inputs), dict.fromkeys(row.inputs, 0)

    def density(text: str) -> Pointwise:
        return Pointwise(read, (Expression(text, read),), start=first)

    def gradient(text: str) -> Pointwise:
        arrays = ("g", *read, "y")
        formulas = tuple(Expression(slope if slope == "0" else text.format(slope), arrays) for slope in row.slopes)
        return Pointwise(arrays, formulas, start=first, summed=True, start_out=dict.fromkeys(range(1, len(read)), 0))

    logarithm, number = density(row.logarithm), density(f"exp({row.logarithm})")
    of_logarithm, of_number = gradient("g * ({})"), gradient("g * y * ({})")
    pointwise(op, lambda p, ins, outs: logarithm if p.is_log else number)
    pointwise(backward, lambda p, ins, outs: of_logarithm if p.is_log else of_number)


for _row in TABLE:
    _declare(_row)


dirichlet, dirichlet_backward = _register(DIRICHLET, ("alpha",))


def _beside_draws(sample: tuple[int, ...], alpha: tuple[int, ...]) -> tuple[int, ...]:
    """alpha's shape with an axis of 1 for each axis of draws."""
    return (*alpha[:-1], *(1,) * (len(sample) - len(alpha)), alpha[-1])


@dirichlet.compute(temps=lambda p, call: _vector_temps(call, *call.inputs))
def _(p: DensityParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, gammaln, sample, (total, terms, alpha, gammas, sums, _) = ctx.xp, ctx.special.gammaln, inputs[0], ctx.temp
    alpha[...] = inputs[1].reshape(alpha.shape)
    terms[...] = sample
    xp.log(terms, out=terms)
    xp.subtract(alpha, 1, out=gammas)
    xp.multiply(terms, gammas, out=terms)
    xp.sum(terms, axis=-1, out=total)
    gammaln(alpha, out=gammas)
    xp.sum(gammas, axis=-1, out=sums)
    xp.subtract(total, sums, out=total)
    xp.sum(alpha, axis=-1, out=sums)
    gammaln(sums, out=sums)
    xp.add(total, sums, out=total)
    if not p.is_log:
        xp.exp(total, out=total)
    xp.copyto(outputs[0], total, casting="unsafe")


@dirichlet_backward.compute(temps=lambda p, call: _vector_temps(call, *call.inputs[1:3]))
def _(p: DensityParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, psi, (gout, sample, masses, out) = ctx.xp, ctx.special.digamma, inputs
    factor, terms, alpha, slopes, sums, summed = ctx.temp
    factor[...] = gout
    if not p.is_log:
        xp.multiply(factor, out, out=factor)
    alpha[...] = masses.reshape(alpha.shape)
    if outputs[0] is not None:
        terms[...] = sample
        xp.subtract(alpha, 1, out=slopes)
        xp.divide(slopes, terms, out=terms)
        xp.multiply(terms, factor[..., None], out=terms)
        xp.copyto(outputs[0], terms, casting="unsafe")
    if outputs[1] is not None:
        terms[...] = sample
        xp.log(terms, out=terms)
        psi(alpha, out=slopes)
        xp.sum(alpha, axis=-1, out=sums)
        psi(sums, out=sums)
        xp.subtract(sums[..., None], slopes, out=slopes)
        xp.add(terms, slopes, out=terms)
        xp.multiply(terms, factor[..., None], out=terms)
        draws = tuple(range(masses.ndim - 1, sample.ndim - 1))
        xp.sum(terms, axis=draws, out=summed)
        xp.copyto(outputs[1], summed, casting="unsafe")


def _vector_temps(call: CallSpec, sample: ArraySpec, alpha: ArraySpec) -> list[Temp]:
    """In the type that is added in: for each draw, for each number, twice alpha beside the draws, its sums, alpha."""
    wide, beside = accumulation_type(sample.dtype), _beside_draws(sample.shape, alpha.shape)
    shapes = (sample.shape[:-1], sample.shape, beside, beside, beside[:-1], alpha.shape)
    return [Temp(shape, wide) for shape in shapes]
