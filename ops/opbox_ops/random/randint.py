"""_random_randint: out, of the parameter shape, has whole numbers from low up to high, without high itself.

Sampling has no gradient.
"""

from __future__ import annotations

from typing import Any, Literal

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, OpContext, Outputs
from ..infer import ShapeList, TypeList
from ..init.fill import fixed_shape
from ..params import Field, Int, Params, PartialShape
from ..registry import register
from .drawing import DRAWN, draw


class RandintParams(Params):
    low: Int = Field(description="The least number.")
    high: Int = Field(description="One more than the greatest number.")
    shape: PartialShape = Field(None, description="Shape of the output; 0 is a size to infer.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: Literal["None", "int32", "int64"] | None = Field(
        "None", description="Element type of the output; int32 by default."
    )


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


@randint.compute(allocates=DRAWN)
def _(p: RandintParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    def fill(random: Any, out: Array) -> None:
        out[...] = random.generator.integers(p.low, p.high, out.shape, dtype="int64")

    draw(ctx, fill, outputs[0], (outputs[0].size,), ())
