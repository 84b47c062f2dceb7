"""The distributions of `table`, each drawn by operators of three forms. Sampling has no gradient.

_random_<name>: parameters are numbers, the output has the given shape
_random_<name>_like: the output has data's shape and element type
_sample_<name>: parameters are arrays (…), and each of their elements is drawn `shape` times: (…, *shape)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import create_model

from opbox_protocol.errors import BadRequestError, ParamError
from opbox_protocol.mxnet import numpy_dtype

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_zero
from ..infer import ShapeList, TypeList, all_same_shape, size_of, summary
from ..init.fill import fixed_shape
from ..params import Field, Float, Int, KnownShape, Params, PartialShape
from ..registry import Op, register
from .drawing import DRAWN, draw, scratch_for
from .table import COLUMNS, TABLE, Distribution

FloatDType = Literal["None", "float16", "float32", "float64", "bfloat16"]


class RandomParams(Params):
    shape: PartialShape = Field(None, description="Shape of the output; 0 is a size to infer.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: FloatDType | None = Field("None", description="Element type of the output; float32 by default.")


class SampleParams(Params):
    shape: KnownShape = Field((), description="How often each element of the parameters is drawn.")
    dtype: FloatDType | None = Field("None", description="Element type of the output; float32 by default.")


_CHECKED = "the library's generator converts and checks arrays of parameters"


@summary("given")
def _wanted_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    if p.dtype in (None, "None"):
        outs.merge(0, outs[0] or numpy_dtype("float32"))
    else:
        outs.merge(0, numpy_dtype(p.dtype))


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

    @plain.compute(temps=scratch_for(row), allocates="" if row.drawn else DRAWN)
    @like.compute(temps=scratch_for(row), allocates="" if row.drawn else DRAWN)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        try:
            draw(ctx, row.fill, outputs[0], (outputs[0].size,), ctx.temp, *_numbers(row, p))
        except ValueError as error:  # too large for the library's generator, such as a mean above 2**63
            raise unusable(row, p, "numbers that can be drawn") from error

    _declare_sample(row)


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

    scratch = scratch_for(row)
    column = COLUMNS.get(row.name)

    def temps(p: SampleParams, call: CallSpec) -> Sequence[Temp]:
        if column is None:
            return scratch(p, call)
        params = call.inputs
        return [
            *scratch(p, call),
            Temp((size_of(params[0].shape), 1), column.dtype(*[array.dtype for array in params])),
        ]

    @op.compute(temps=temps, allocates=_CHECKED if row.name == "gamma" else "" if row.drawn else DRAWN)
    def _(p: SampleParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        columns: Arrays = [array.reshape(array.size, 1) for array in inputs]
        fill: Callable[..., None] = row.fill
        drawn_in: Arrays = ctx.temp
        try:
            if column is not None:
                *drawn_in, temp = ctx.temp
                fill, columns = column.fill, column.work_out(ctx.xp, columns, temp)
            draw(ctx, fill, outputs[0], (inputs[0].size, size_of(p.shape)), drawn_in, *columns)
        except ValueError as error:
            raise BadRequestError(
                f"{', '.join(row.inputs)}: expected {row.expected} everywhere, got numbers that are not"
            ) from error

    return op


for _row in TABLE:
    _declare(_row)
