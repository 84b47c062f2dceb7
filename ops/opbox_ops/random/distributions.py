"""One table of distributions, each drawn in three ways.

    _random_<name>: parameters are numbers, the output has the given shape
    _random_<name>_like: the output has data's shape and element type
    _sample_<name>: parameters are arrays (…), and each of their elements is drawn `shape` times: (…, *shape)

uniform over [low, high); normal of mean loc and deviation scale; gamma of shape alpha and scale beta; exponential of
rate lam; poisson of mean lam; negative_binomial: failures before the k-th success of probability p; its generalised
form: poisson whose mean is gamma distributed, with mean mu and dispersion alpha. Sampling has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import create_model

from opbox_protocol.errors import BadRequestError, ParamError
from opbox_protocol.mxnet import numpy_dtype

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp, TempsRule
from ..gradient import grad_zero
from ..infer import ShapeList, TypeList, all_same_shape, size_of, summary
from ..init.fill import fixed_shape
from ..params import Field, Float, Int, KnownShape, Params, PartialShape
from ..pausing import pause
from ..registry import Op, register

FloatDType = Literal["None", "float16", "float32", "float64"]


class RandomParams(Params):
    shape: PartialShape = Field(None, description="Shape of the output; 0 is a size to infer.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: FloatDType | None = Field("None", description="Element type of the output; float32 by default.")


class RandintParams(Params):
    low: Int = Field(description="The least number.")
    high: Int = Field(description="One more than the greatest number.")
    shape: PartialShape = Field(None, description="Shape of the output; 0 is a size to infer.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: Literal["None", "int32", "int64"] | None = Field(
        "None", description="Element type of the output; int32 by default."
    )


class SampleParams(Params):
    shape: KnownShape = Field((), description="How often each element of the parameters is drawn.")
    dtype: FloatDType | None = Field("None", description="Element type of the output; float32 by default.")


@dataclass(frozen=True)
class Distribution:
    """A row of the table.

    Attributes:
        name: as it appears in the operators' names.
        params: its numeric parameters with their defaults, in order.
        fill: `(random, out, *params)` fills `out`; the parameters are numbers, or arrays that broadcast to out.
        inputs: the names of the parameters of the _sample_ form.
        drawn: the element types in which the generator draws into an array that exists, the first for all others.
        valid: which numbers are possible, and in words.
        aliases: further names of the _random_ form.
    """

    name: str
    params: Mapping[str, float]
    fill: Callable[..., None]
    inputs: tuple[str, ...]
    drawn: tuple[str, ...] = ()
    valid: Callable[..., bool] = lambda *params: True
    expected: str = ""
    aliases: tuple[str, ...] = ()


def _uniform(random: Any, out: Array, low: Any, high: Any) -> None:
    random.uniform(out, low, high)


def _normal(random: Any, out: Array, loc: Any, scale: Any) -> None:
    random.normal(out, loc, scale)


def _gamma(random: Any, out: Array, alpha: Any, beta: Any) -> None:
    random.gamma(out, alpha, beta)


def _exponential(random: Any, out: Array, lam: Any) -> None:
    random.exponential(out, 1.0 / lam)


def _poisson(random: Any, out: Array, lam: Any) -> None:
    out[...] = random.generator.poisson(lam, out.shape)


def _negative_binomial(random: Any, out: Array, k: Any, p: Any) -> None:
    out[...] = random.generator.poisson(random.generator.gamma(k, (1.0 - p) / p, out.shape), out.shape)


def _generalized(random: Any, out: Array, mu: Any, alpha: Any) -> None:
    # Without dispersion (alpha 0) the mean is mu itself: a Poisson distribution.
    even = alpha == 0
    dispersion = alpha + even
    means = random.generator.gamma(1.0 / dispersion, dispersion * mu, out.shape)
    out[...] = random.generator.poisson(means * (1 - even) + mu * even, out.shape)


TABLE = (
    Distribution(
        "uniform",
        {"low": 0.0, "high": 1.0},
        _uniform,
        ("low", "high"),
        ("float32", "float64"),
        lambda low, high: low <= high,
        "low at most high",
        aliases=("uniform",),
    ),
    Distribution(
        "normal",
        {"loc": 0.0, "scale": 1.0},
        _normal,
        ("mu", "sigma"),
        ("float32", "float64"),
        lambda loc, scale: scale >= 0,
        "scale of at least 0",
        aliases=("normal",),
    ),
    Distribution(
        "gamma",
        {"alpha": 1.0, "beta": 1.0},
        _gamma,
        ("alpha", "beta"),
        ("float64",),
        lambda alpha, beta: alpha > 0 and beta > 0,
        "alpha and beta above 0",
    ),
    Distribution("exponential", {"lam": 1.0}, _exponential, ("lam",), ("float64",), lambda lam: lam > 0, "lam above 0"),
    Distribution("poisson", {"lam": 1.0}, _poisson, ("lam",), (), lambda lam: lam >= 0, "lam of at least 0"),
    Distribution(
        "negative_binomial",
        {"k": 1, "p": 1.0},
        _negative_binomial,
        ("k", "p"),
        (),
        lambda k, p: k > 0 and 0 < p <= 1,
        "k above 0 and p above 0 and at most 1",
    ),
    Distribution(
        "generalized_negative_binomial",
        {"mu": 1.0, "alpha": 1.0},
        _generalized,
        ("mu", "alpha"),
        (),
        lambda mu, alpha: mu >= 0 and alpha >= 0,
        "mu and alpha of at least 0",
    ),
)


AT_ONCE = 1 << 18
"""Numbers that are drawn at a time: some 10 ms of the slowest distribution."""
_DRAWN = "the library's generator has no output argument for this distribution"
_CHECKED = "the library's generator converts and checks arrays of parameters"


def _room(row: Distribution) -> TempsRule:
    """The rule for room to draw a piece in, where the generator cannot draw in the output's type."""

    def temps(p: Any, call: CallSpec) -> list[Temp]:
        out = call.outputs[0]
        if not row.drawn or out.dtype.name in row.drawn:
            return []
        count = size_of(out.shape)
        return [Temp((min(count, AT_ONCE) if call.device == "cpu" else count,), row.drawn[0])]

    return temps


def _draw(
    ctx: OpContext, fill: Callable[..., None], out: Array, shape: tuple[int, ...], room: Arrays, *params: Any
) -> None:
    """Fill `out`, drawing in `shape`, as generators broadcast over fewer axes than an array may have; in `room`.

    Parameters are numbers, or columns with a row for each of `shape`.
    """
    target = out.reshape(shape)
    for at in _pieces(shape) if ctx.xp is np else ((),):
        part = target[at]
        drawn = room[0][: part.size].reshape(part.shape) if room else part
        fill(ctx.random, drawn, *[_of_rows(number, at) for number in params])
        if room:
            ctx.xp.copyto(part, drawn, casting="unsafe")


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield the pieces of an array to draw, in the order in which a generator fills it: rows, or parts of one."""
    if math.prod(shape) <= AT_ONCE:
        yield ()
        return
    rows, count = shape if len(shape) == 2 else (1, shape[0])
    step, part = max(1, AT_ONCE // max(count, 1)), min(count, AT_ONCE)
    for row in range(0, rows, step):
        for start in range(0, count, part):
            pause()
            columns = slice(start, start + part)
            yield (slice(row, row + step), columns) if len(shape) == 2 else (columns,)


def _of_rows(number: Any, at: tuple[slice, ...]) -> Any:
    """A parameter where `at` is drawn."""
    return number[at[0]] if len(at) == 2 and isinstance(number, np.ndarray) else number


@summary("given")
def _wanted_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    if p.dtype in (None, "None"):
        outs.merge(0, outs[0] or numpy_dtype("float32"))
    else:
        outs.merge(0, p.dtype)


def _numbers(row: Distribution, p: Any) -> list[Any]:
    return [getattr(p, name) for name in row.params]


def _model(row: Distribution, base: type[Params], suffix: str) -> type[Params]:
    """The parameter model of a row: its numbers, then what `base` has."""
    fields: dict[str, Any] = {
        name: (Int if isinstance(default, int) else Float, Field(default, description=f"Parameter of the {row.name}."))
        for name, default in row.params.items()
    }
    model = create_model(f"Random{row.name.title().replace('_', '')}{suffix}Params", __base__=base, **fields)
    model.positional = tuple(row.params)
    return model


def _check(row: Distribution, p: Any) -> None:
    if not row.valid(*_numbers(row, p)):
        raise unusable(row, p, row.expected)


def unusable(row: Distribution, p: Any, expected: str) -> ParamError:
    """The error for an operator's parameters that its distribution cannot draw from; `expected` says what it can."""
    got = ", ".join(f"{name}={number}" for name, number in zip(row.params, _numbers(row, p), strict=True))
    return ParamError(f"_random_{row.name}: expected {expected}, got {got}")


def _declare(row: Distribution) -> None:
    plain = register(
        f"_random_{row.name}",
        _model(row, RandomParams, ""),
        inputs=(),
        aliases=(f"random_{row.name}", *row.aliases),
        doc=f"Numbers of the {row.name} distribution.",
    )
    like = register(
        f"_random_{row.name}_like",
        _model(row, Params, "Like"),
        doc=f"Numbers of the {row.name} distribution in data's shape and element type.",
    )
    like.set_attr("FGradient", grad_zero)
    for drawing in (plain, like):
        drawing.set_attr("TRandom", True)
    plain.infer_type(_wanted_type)

    @plain.infer_shape
    @summary("given")
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        _check(row, p)
        fixed_shape(p, ins, outs)

    @like.infer_shape
    @summary("first")
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        _check(row, p)
        all_same_shape(p, ins, outs)

    @plain.compute(temps=_room(row), allocates="" if row.drawn else _DRAWN)
    @like.compute(temps=_room(row), allocates="" if row.drawn else _DRAWN)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        try:
            _draw(ctx, row.fill, outputs[0], (outputs[0].size,), ctx.temp, *_numbers(row, p))
        except ValueError as error:  # too large for the library's generator, such as a mean above 2**63
            raise unusable(row, p, "numbers that can be drawn") from error

    _declare_sample(row)


@dataclass(frozen=True)
class Column:
    """A column that a _sample_ form works out of its parameters before it draws.

    Attributes:
        dtype: the column's element type, for those of the parameters.
        work_out: `(xp, parameters, column)` writes the column, and returns the columns that `fill` takes.
        fill: see `Distribution`.
    """

    dtype: Callable[..., np.dtype[Any]]
    work_out: Callable[[Any, Arrays, Array], Arrays]
    fill: Callable[..., None]


def _widths(xp: Any, params: Arrays, width: Array) -> Arrays:
    low, high = params
    xp.subtract(high, low, out=width)
    return width, low


def _stretched(random: Any, out: Array, width: Array, low: Array) -> None:
    """Draw from [0, 1), and stretch and move each row to its range."""
    random.uniform(out)
    out *= width
    out += low


def _means(xp: Any, params: Arrays, mean: Array) -> Arrays:
    (lam,) = params
    if xp is np and np.fmin.reduce(lam, axis=None, initial=0) < 0:
        raise ValueError("lam: expected above 0")
    xp.divide(1.0, lam, out=mean)
    return (mean,)


def _of_mean(random: Any, out: Array, mean: Array) -> None:
    random.exponential(out, mean)


COLUMNS = {
    "uniform": Column(np.result_type, _widths, _stretched),
    "exponential": Column(lambda lam: np.dtype("float64") if lam.kind in "biu" else lam, _means, _of_mean),
}
"""By distribution's name; the others draw with their parameters as they are."""


def _declare_sample(row: Distribution) -> Op:
    op = register(
        f"_sample_{row.name}",
        SampleParams,
        inputs=row.inputs,
        aliases=(f"sample_{row.name}",),
        doc=f"Numbers of {row.name} distributions whose parameters are arrays.",
    )
    op.set_attr("FGradient", grad_zero)
    op.set_attr("TRandom", True)

    @op.infer_shape
    def _(p: SampleParams, ins: ShapeList, outs: ShapeList) -> None:
        shape = outs[0][: len(outs[0]) - len(p.shape)] if outs[0] is not None else None
        for _ in range(2):
            for i in range(len(ins)):
                shape = ins.merge(i, shape)
        if shape is not None:
            outs.merge(0, (*shape, *p.shape))

    @op.infer_type
    def _(p: SampleParams, ins: TypeList, outs: TypeList) -> None:
        dtype = None
        for _ in range(2):
            for i in range(len(ins)):
                dtype = ins.merge(i, dtype)
        _wanted_type(p, ins, outs)

    room = _room(row)
    column = COLUMNS.get(row.name)

    def temps(p: SampleParams, call: CallSpec) -> Sequence[Temp]:
        if column is None:
            return room(p, call)
        params = call.inputs
        return [*room(p, call), Temp((size_of(params[0].shape), 1), column.dtype(*[array.dtype for array in params]))]

    @op.compute(temps=temps, allocates=_CHECKED if row.name == "gamma" else "" if row.drawn else _DRAWN)
    def _(p: SampleParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        columns: Arrays = [array.reshape(array.size, 1) for array in inputs]
        fill: Callable[..., None] = row.fill
        drawn_in: Arrays = ctx.temp
        try:
            if column is not None:
                *drawn_in, temp = ctx.temp
                fill, columns = column.fill, column.work_out(ctx.xp, columns, temp)
            _draw(ctx, fill, outputs[0], (inputs[0].size, size_of(p.shape)), drawn_in, *columns)
        except ValueError as error:
            raise BadRequestError(
                f"{', '.join(row.inputs)}: expected {row.expected} everywhere, got numbers that are not"
            ) from error

    return op


for _row in TABLE:
    _declare(_row)


randint = register(
    "_random_randint", RandintParams, inputs=(), aliases=("random_randint",), doc="Whole numbers from low up to high."
)
randint.set_attr("TRandom", True)


@randint.infer_shape
def _(p: RandintParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.low >= p.high:
        raise ParamError(f"_random_randint: expected low below high, got low={p.low}, high={p.high}")
    fixed_shape(p, ins, outs)


@randint.infer_type
def _(p: RandintParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "int32" if p.dtype in (None, "None") else p.dtype)


@randint.compute(allocates=_DRAWN)
def _(p: RandintParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    def fill(random: Any, out: Array) -> None:
        out[...] = random.generator.integers(p.low, p.high, out.shape, dtype="int64")

    _draw(ctx, fill, outputs[0], (outputs[0].size,), ())
