"""mx.np's functions of the bits of integers: and, or, xor, not. bool counts as one bit.

    lhs (2, 1), rhs (3,) -> (2, 3)        data, a number -> data's shape

They have no gradient.
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import DTypeError

from ..compute import Arrays, OpContext, Outputs
from ..elementwise.scalar import ScalarParams
from ..infer import ShapeList, TypeList, all_same_shape, all_same_type, broadcast_shapes
from ..params import NoParams
from ..params import as_element as element
from ..registry import register


def _types(p: Any, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, outs)
    for index, dtype in enumerate(ins):
        if dtype is not None and dtype.kind not in "iub":
            raise DTypeError(f"expected integers or bool, got {dtype}: Cast it first", side="input", index=index)


def _declare(word: str) -> None:
    arrays = register(
        f"_npi_bitwise_{word}",
        inputs=("lhs", "rhs"),
        doc=f"The bitwise {word} of lhs and rhs; the shapes are broadcast.",
    )
    scalar = register(f"_npi_bitwise_{word}_scalar", ScalarParams, doc=f"The bitwise {word} of data and a number.")
    arrays.set_attr("FInferType", _types)
    scalar.set_attr("FInferType", _types)
    scalar.set_attr("FInferShape", all_same_shape)

    @arrays.infer_shape
    def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
        outs.merge(0, broadcast_shapes(*ins))

    @arrays.compute()
    def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        getattr(ctx.xp, f"bitwise_{word}")(*inputs, out=outputs[0])

    @scalar.compute()
    def _(p: ScalarParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        number = element(p.scalar, outputs[0].dtype)
        getattr(ctx.xp, f"bitwise_{word}")(inputs[0], number, out=outputs[0])


for _word in ("and", "or", "xor"):
    _declare(_word)

inverted = register("_npi_bitwise_not", inputs=("x",), doc="The bits of x inverted; of bool, whether it is false.")
inverted.set_attr("FInferShape", all_same_shape)
inverted.set_attr("FInferType", _types)


@inverted.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.invert(inputs[0], out=outputs[0])
