"""_contrib_BilinearResize2D and _contrib_AdaptiveAvgPooling2D: images brought to another size, each channel for itself.

data (batch, channel, height, width), out (batch, channel, new height, new width). Either is a product with a matrix for
each of the two dimensions, whose rows hold what an element of out is made of:

    out = H @ data @ W.T        gdata = H.T @ gout @ W

    BilinearResize2D    between the two elements that the position falls between: i (n - 1) / (m - 1) with
                        align_corners, (i + 1/2) n / m - 1/2 (at least 0) without, for element i of m, from n
    BilinearResize2D        without align_corners, to one row or column: that at position 0, as in MXNet
    AdaptiveAvgPooling2D    the mean of the elements floor(i n / m) to ceil((i + 1) n / m)

BilinearResize2D's size is told by its mode: height and width, or scale_height and scale_width times data's ("size");
data's times the scales, made odd by one more ("odd_scale"); that of the input like ("like", whose gradient is 0); the
nearest even or odd number that is not greater ("to_even_down", "to_odd_down") or not less ("to_even_up", "to_odd_up").
AdaptiveAvgPooling2D's output_size is two numbers, one for both, or none for 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type
from ..bound_calls import nothing
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node
from ..index.zero_weights import lost_to_zero_weights, weighted_sums
from ..infer import ShapeList, all_same_float, known, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Int, OptFloat, Params, Shape
from ..registry import Slot, register, register_backward, when

Mode = Literal["like", "odd_scale", "size", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"]


class BilinearResizeParams(Params):
    height: Int = Field(1, description="Height of out, with mode 'size'.")
    width: Int = Field(1, description="Width of out, with mode 'size'.")
    scale_height: OptFloat = Field(None, description="What height is multiplied by, with modes 'size', 'odd_scale'.")
    scale_width: OptFloat = Field(None, description="What width is multiplied by, with modes 'size' and 'odd_scale'.")
    mode: Mode = Field("size", description="What tells the size of out.")
    align_corners: Bool = Field(True, description="Whether the corners of data and out are at the same places.")


class AdaptiveAvgPoolingParams(Params):
    output_size: Shape = Field((), description="Height and width of out, or one number for both; 1 by default.")


resize = register(
    "_contrib_BilinearResize2D",
    BilinearResizeParams,
    inputs=("data", Slot("like", when("mode", "like"))),
    doc="Images brought to another size by bilinear interpolation.",
)
pool = register(
    "_contrib_AdaptiveAvgPooling2D",
    AdaptiveAvgPoolingParams,
    doc="Means over as many parts of each image as output_size says.",
)
resize.infer_type(all_same_float)
pool.infer_type(all_same_float)
resize_backward = register_backward(
    "_backward_contrib_BilinearResize2D", BilinearResizeParams, outputs=("data", Slot("like", when("mode", "like")))
)
pool_backward = register_backward("_backward_contrib_AdaptiveAvgPooling2D", AdaptiveAvgPoolingParams, outputs=("data",))


def _scaled(p: BilinearResizeParams, size: int, scale: float | None, plain: int) -> int:
    """The new length of a dimension of length `size`."""
    if p.mode == "size":
        return int(size * scale) if scale is not None else plain
    if p.mode == "odd_scale":
        assert scale is not None
        return int(size * scale) if size % 2 == 0 else int((size - 1) * scale) + 1
    wrong = size % 2 != ("odd" in p.mode)
    return size + wrong * (1 if p.mode.endswith("up") else -1)


def _images(ins: ShapeList) -> tuple[int, ...]:
    """data's shape, checked."""
    data = ins.rank(0, 4) or (-1,) * 4
    if 0 in data[2:]:
        raise ShapeError(f"expected a height and width of at least 1, got {show_shape(data)}", side="input", index=0)
    return data


@resize.infer_shape
def _(p: BilinearResizeParams, ins: ShapeList, outs: ShapeList) -> None:
    scales = (p.scale_height, p.scale_width)
    used = p.mode in ("size", "odd_scale")
    if (used and (scales[0] is None) != (scales[1] is None)) or (p.mode == "odd_scale" and None in scales):
        raise ParamError(f"_contrib_BilinearResize2D: parameter 'scale_height': expected both scales, got {scales}")
    if used and any(scale is not None and scale <= 0 for scale in scales):
        raise ParamError(f"_contrib_BilinearResize2D: parameter 'scale_height': expected positive scales, got {scales}")
    data = _images(ins)
    sizes: tuple[int, ...] = (-1, -1)
    if p.mode == "like":
        like = ins.rank(1, 4)
        sizes = (-1, -1) if like is None else like[2:]
    elif p.mode == "size" and scales[0] is None:
        sizes = (p.height, p.width)
    elif known(data[2:]):
        sizes = tuple(map(_scaled, (p, p), data[2:], scales, (p.height, p.width)))
    if 0 in data[2:]:
        raise ShapeError(f"expected images with pixels, got {show_shape(data)}", side="input", index=0)
    if 0 in sizes or min(sizes) < -1:
        raise ShapeError(f"expected a size of at least (1, 1) for out, got {sizes}", side="output", index=0)
    out = outs.merge(0, (*data[:2], *sizes)) or ()
    ins.merge(0, (*out[:2], *data[2:]))
    if p.mode == "like":
        ins.merge(1, (-1, -1, *out[2:]))


@pool.infer_shape
def _(p: AdaptiveAvgPoolingParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.output_size) > 2 or min(p.output_size, default=1) < 1:
        raise ShapeError(f"output_size: expected at most two positive numbers, got {p.output_size}")
    sizes = (p.output_size or (1,)) * (2 if len(p.output_size) < 2 else 1)
    data = _images(ins)
    out = outs.merge(0, (*data[:2], *sizes)) or ()
    ins.merge(0, (*out[:2], *data[2:]))


@resize.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_contrib_BilinearResize2D", node, ograds)


@pool.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_contrib_AdaptiveAvgPooling2D", node, ograds)


@lru_cache(maxsize=64)
def _between(n: int, m: int, align: bool, dtype: str) -> Array:
    """The matrix (m, n) of bilinear interpolation."""
    matrix, rows = np.zeros((m, n)), np.arange(m)
    step = (n - 1) / (m - 1) if align and m > 1 else n / m
    place = rows * step if align or m == 1 else np.maximum((rows + 0.5) * step - 0.5, 0)
    low = np.minimum(place.astype(int), n - 1)
    weight = np.where(low < n - 1, place - low, 0)
    matrix[rows, low] = 1 - weight
    matrix[rows, np.minimum(low + 1, n - 1)] += weight
    return matrix.astype(dtype)


@lru_cache(maxsize=64)
def _means(n: int, m: int, align: bool, dtype: str) -> Array:
    """The matrix (m, n) of means over m parts."""
    rows, columns = np.arange(m)[:, None], np.arange(n)
    inside = (columns >= rows * n // m) & (columns < -(-(rows + 1) * n // m))
    means: Array = (inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)).astype(dtype)
    return means


def _matrices(p: Any, xp: Any, data: tuple[int, ...], out: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """H and W, on the device."""
    make, align = (_between, p.align_corners) if isinstance(p, BilinearResizeParams) else (_means, False)
    height, width = (make(n, m, align, dtype.str) for n, m in zip(data[2:], out[2:], strict=True))
    return xp.asarray(height), xp.asarray(width)


def _temps(p: Any, call: CallSpec) -> Sequence[Temp]:
    """The source and the target in the type that is summed in, and what is between the two products."""
    source, target = call.inputs[0], call.outputs[0]
    dtype = accumulation_type(source.dtype)
    between = (*source.shape[:2], target.shape[2], source.shape[3])
    return [Temp(shape, dtype) for shape in (source.shape, between, target.shape)]


def _forward(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    if outputs[0] is None:
        return nothing
    height, width = _matrices(p, ctx.xp, inputs[0].shape, outputs[0].shape, ctx.temp[0].dtype)
    return partial(_product, ctx.xp, ctx.temp, height, width, inputs[0], outputs[0])


def _backward(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    gdata, *unused = outputs
    product: Callable[[], None] = nothing
    if gdata is not None:
        height, width = _matrices(p, ctx.xp, gdata.shape, inputs[0].shape, ctx.temp[0].dtype)
        product = partial(_product, ctx.xp, ctx.temp, height.T, width.T, inputs[0], gdata)

    def run() -> None:
        for like in unused:
            if like is not None:
                like.fill(0)
        product()

    return run


def _product(xp: Any, scratch: Arrays, height: Array, width: Array, source: Array, target: Array) -> None:
    """target = height @ source @ width.T"""
    wide, between, product = scratch
    wide[...] = source
    matmul(xp, height, wide, between)
    matmul(xp, between, width.T, product)
    if lost_to_zero_weights(xp, product):

        def weigh(images: Array, ones: bool) -> Array:
            rows, columns = (matrix > 0 if ones else matrix for matrix in (height, width))
            sums: Array = rows @ images @ columns.T
            return sums

        product[...] = weighted_sums(weigh, wide)
    target[...] = product


# The matrices are made when a call is bound, and copied to the device then.
for op, compute in ((resize, _forward), (pool, _forward), (resize_backward, _backward), (pool_backward, _backward)):
    op.compute(temps=_temps, prepares=True)(compute)
