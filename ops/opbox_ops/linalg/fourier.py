"""_contrib_fft, _contrib_ifft, _contrib_count_sketch: transforms along the last axis.

    fft           data (…, d) real -> (…, 2 * d): real and imaginary part in turns
    ifft          data (…, 2 * d), such pairs -> (…, d): the real part of the inverse transform, times d
    count_sketch  out[…, h[i]] += s[i] * data[…, i]; data (…, k), h and s (1, k), h from 0 to out_dim - 1

    fft   gdata = ifft(gout)        ifft  gdata = fft(gout)        count_sketch  gdata[…, i] = s[i] * gout[…, h[i]]

The transforms are those of float32 data, as in MXNet, where they run on GPUs alone; compute_size and
processing_batch_size are accepted and mean nothing here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node, grad_use_none
from ..index.counting import count_up
from ..index.positions import checked, put_rows, take_rows, whole
from ..infer import ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import Field, Params, PositiveInt
from ..registry import register, register_backward

COMPLEX = "the library makes the complex numbers itself"


class FourierParams(Params):
    compute_size: PositiveInt = Field(128, description="Accepted; MXNet's number of rows in one call of cuFFT.")


class SketchParams(Params):
    out_dim: PositiveInt = Field(description="Size of the last axis of the output.")
    processing_batch_size: PositiveInt = Field(32, description="Accepted; MXNet's number of rows in one launch.")


fft = register("_contrib_fft", FourierParams, doc="The Fourier transform along the last axis.")
ifft = register(
    "_contrib_ifft", FourierParams, doc="The inverse Fourier transform along the last axis, times its size."
)
sketch = register(
    "_contrib_count_sketch", SketchParams, inputs=("data", "h", "s"), doc="Numbers summed, with signs, into buckets."
)
fft_backward = register_backward("_backward_contrib_fft", FourierParams)
ifft_backward = register_backward("_backward_contrib_ifft", FourierParams)
sketch_backward = register_backward("_backward_contrib_count_sketch", SketchParams)
fft.set_attr("FGradient", grad_use_none("_backward_contrib_fft"))
ifft.set_attr("FGradient", grad_use_none("_backward_contrib_ifft"))


def _doubled(real: ShapeList, pairs: ShapeList) -> None:
    """`pairs` has twice as many numbers on its last axis as `real`."""
    shape = real[0]
    if shape is not None:
        if not shape:
            raise ShapeError("expected at least 1 dimension, got ()", side=real.side, index=0)
        pairs.merge(0, (*shape[:-1], 2 * shape[-1] if shape[-1] >= 0 else -1))
    shape = pairs[0]
    if shape is not None:
        if not shape or (shape[-1] >= 0 and shape[-1] % 2):
            raise ShapeError(
                f"expected pairs of numbers on the last axis, got {show_shape(shape)}", side=pairs.side, index=0
            )
        real.merge(0, (*shape[:-1], shape[-1] // 2 if shape[-1] >= 0 else -1))


@fft.infer_shape
def _(p: FourierParams, ins: ShapeList, outs: ShapeList) -> None:
    _doubled(ins, outs)


@ifft.infer_shape
def _(p: FourierParams, ins: ShapeList, outs: ShapeList) -> None:
    _doubled(outs, ins)


@fft.infer_type
@ifft.infer_type
@sketch.infer_type
def _(p: Any, ins: TypeList, outs: TypeList) -> None:
    for slots in (ins, outs):
        for i in range(len(slots)):
            slots.merge(i, "float32")


def _on_cpu(transform: str, numbers: Array) -> None:
    """SciPy's transform "fft" or "ifft" (without its factor) of complex64 along the last axis, in place."""
    import scipy.fft  # when a transform is to run: it takes half as long to load as NumPy

    norm = "forward" if transform == "ifft" else "backward"
    transformed = getattr(scipy.fft, transform)(numbers, axis=-1, norm=norm, overwrite_x=True)
    if transformed.ctypes.data != numbers.ctypes.data:  # SciPy may work in place, and does not promise to
        np.copyto(numbers, transformed)


@fft.compute("cpu")
@ifft_backward.compute("cpu")
def _(p: FourierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if inputs[0].size:
        numbers = outputs[0].view(np.complex64)
        np.copyto(numbers, inputs[0])
        _on_cpu("fft", numbers)


@ifft.compute("cpu", temps=lambda p, call: [Temp(call.outputs[0].shape, "complex64")])
@fft_backward.compute("cpu", temps=lambda p, call: [Temp(call.outputs[0].shape, "complex64")])
def _(p: FourierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (numbers,), out = ctx.temp, outputs[0]
    if out.size:
        np.copyto(numbers.view(np.float32), inputs[0])
        _on_cpu("ifft", numbers)
        np.copyto(out, numbers.real)


@fft.compute("gpu", allocates=COMPLEX)
@ifft_backward.compute("gpu", allocates=COMPLEX)
def _(p: FourierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if inputs[0].size:
        numbers = ctx.xp.fft.fft(inputs[0], axis=-1)
        outputs[0][..., 0::2] = numbers.real
        outputs[0][..., 1::2] = numbers.imag


@ifft.compute("gpu", allocates=COMPLEX)
@fft_backward.compute("gpu", allocates=COMPLEX)
def _(p: FourierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data, out = ctx.xp, inputs[0], outputs[0]
    if out.size:
        numbers = data[..., 0::2] + xp.complex64(1j) * data[..., 1::2]
        xp.multiply(xp.fft.ifft(numbers, axis=-1).real, out.shape[-1], out=out)


@sketch.infer_shape
def _(p: SketchParams, ins: ShapeList, outs: ShapeList) -> None:
    data, out = ins[0], outs[0]
    if data == () or out == ():
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    size = -1 if data is None else data[-1]
    for _ in range(2):
        for i in (1, 2):
            ins.rank(i, 2)
            line = ins.merge(i, (1, size))
            assert line is not None
            size = line[1]
    if data is not None:
        out = outs.merge(0, (*data[:-1], p.out_dim))
    elif out is not None:
        out = outs.merge(0, (*out[:-1], p.out_dim))
    if out is not None:
        ins.merge(0, (*out[:-1], size))


@sketch.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [*backward_node("_backward_contrib_count_sketch", node, [ograds[0], *node.inputs[1:]])[:1], None, None]


def _buckets(ctx: OpContext, p: SketchParams, h: Array) -> Array:
    """The bucket of each number, in the first temporary."""
    buckets = whole(ctx.xp, h.reshape(-1), ctx.temp[0])
    checked(ctx.xp, buckets, 0, p.out_dim, "h")
    return buckets


def _sums(p: SketchParams, call: CallSpec) -> list[Temp]:
    """The buckets, the numbers' positions, and the matrix that sums into buckets."""
    size = call.inputs[0].shape[-1]
    return [Temp((size,), "int64"), Temp((size,), "int64"), Temp((size, p.out_dim), call.inputs[0].dtype)]


@sketch.compute(temps=_sums)
def _(p: SketchParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data, h, s), (_, cells, matrix) = inputs, ctx.temp
    count_up(ctx.xp, cells)
    cells *= p.out_dim
    cells += _buckets(ctx, p, h)
    matrix.fill(0)
    put_rows(ctx.xp, matrix.reshape(-1, 1), cells, s.reshape(-1, 1))
    matmul(ctx.xp, data, matrix, outputs[0])


@sketch_backward.compute(temps=lambda p, call: [Temp(call.inputs[1].shape[-1:], "int64")])
def _(p: SketchParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, h, s = inputs
    if outputs[0] is None:
        return
    take_rows(ctx.xp, gout, _buckets(ctx, p, h), outputs[0], axis=-1)
    ctx.xp.multiply(outputs[0], s.reshape(-1), out=outputs[0])
