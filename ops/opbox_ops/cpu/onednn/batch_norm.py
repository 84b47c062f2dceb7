"""BatchNorm by oneDNN, the channels second or last: forward and gradients; the reference's notes of statistics.

oneDNN takes and gives the variance, MXNet's outputs have 1 / sqrt(variance + eps): the one is made of the other, a
number a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from ...compute import PLAIN, Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs, Temp
from ...layout import physical_arrays, physical_shape, share_layout
from ...nn.batch_norm import BatchNormParams, backward, invert, move, op, settle_gamma
from ..runtime.memory_format import MemoryFormat, memory_of
from .cache import MAX_CACHED_KERNELS
from .library import ArgumentNumber, Flag, Propagation
from .primitive import Operand, PrimitiveKernel, Runs, takes


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def _forward(data: MemoryFormat, eps: float, scale: bool, of_batch: bool) -> PrimitiveKernel | None:
    channels = MemoryFormat.plain(data.shape[1:2], "float32")
    operands = [
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.DESTINATION, data, written=True),
        Operand(ArgumentNumber.MEAN, channels, written=of_batch),
        Operand(ArgumentNumber.VARIANCE, channels, written=of_batch),
        Operand(ArgumentNumber.SHIFT, channels),
        *([Operand(ArgumentNumber.SCALE, channels)] if scale else []),
    ]

    def arguments(source: int, target: int, *_: int) -> tuple[Any, ...]:
        return (Propagation.TRAINING, source, target, eps, _flags(scale, of_batch))

    return PrimitiveKernel.of("batch_normalization_forward", operands, arguments)


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def _backward(data: MemoryFormat, eps: float, scale: bool, of_batch: bool) -> PrimitiveKernel | None:
    channels = MemoryFormat.plain(data.shape[1:2], "float32")
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, data),
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.DIFF_SOURCE, data, written=True),
        Operand(ArgumentNumber.MEAN, channels),
        Operand(ArgumentNumber.VARIANCE, channels),
        Operand(ArgumentNumber.DIFF_SHIFT, channels, written=True),
        *(
            [Operand(ArgumentNumber.SCALE, channels), Operand(ArgumentNumber.DIFF_SCALE, channels, written=True)]
            if scale
            else []
        ),
    ]

    def arguments(target: int, source: int, into: int, *_: int) -> tuple[Any, ...]:
        return (Propagation.BACKWARD, into, target, source, eps, _flags(scale, of_batch))

    hint = _forward(data, eps, scale, of_batch)
    return None if hint is None else PrimitiveKernel.of("batch_normalization_backward", operands, arguments, hint)


def _flags(scale: bool, of_batch: bool) -> int:
    return Flag.SHIFT | (Flag.SCALE if scale else 0) | (0 if of_batch else Flag.GLOBAL_STATISTICS)


_Pair = tuple[PrimitiveKernel, PrimitiveKernel]


def _pair(
    p: BatchNormParams, call: CallSpec, like_data: tuple[int, ...], make: Callable[..., PrimitiveKernel | None]
) -> _Pair | None:
    """The kernels with the moving statistics and with the batch's: which one runs is known in a run.

    The inputs `like_data`, and output 0, are shaped like data.
    """
    data = call.outputs[0]
    ndim = len(data.shape)
    axis = p.axis % max(1, ndim)
    if not share_layout(call, like_data, (0,)) or not takes(data) or not 2 <= ndim <= 5 or axis not in (1, ndim - 1):
        return None
    if data.layout != PLAIN and axis != 1:
        return None
    memory = memory_of(data, (0, axis, *(i for i in range(1, ndim) if i != axis)))
    moving, batch = (make(memory, p.eps, not p.fix_gamma, of_batch) for of_batch in (False, True))
    return None if moving is None or batch is None else (moving, batch)


def _temps(call: CallSpec, data: ArraySpec, statistics: ArraySpec, pair: _Pair) -> tuple[Temp, ...]:
    """Three arrays of a number a channel, scratch for output 0 where nobody wants it, and the kernels' temporaries."""
    scratch, unread = Temp(statistics.shape, statistics.dtype), (0,) if call.wants(0) else physical_shape(data)
    return (scratch, scratch, scratch, Temp(unread, data.dtype), *(temp for kernel in pair for temp in kernel.temps))


def _runs(pair: _Pair, scratches: Sequence[Array], moving: Sequence[Array], batch: Sequence[Array]) -> list[Runs]:
    """Bind the kernel with moving statistics to the arrays `moving`, the one with the batch's to `batch`."""
    first = len(pair[0].temps)
    return [pair[0].bind(scratches[:first], moving), pair[1].bind(scratches[first:], batch)]


@op.kernel("cpu", level="library")
def _(p: BatchNormParams, call: CallSpec) -> Kernel | None:
    pair = _pair(p, call, (0,), _forward)
    return None if pair is None else Kernel(partial(_bind, pair), _temps(call, call.outputs[0], call.outputs[1], pair))


def _bind(pair: _Pair, p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    (data, gamma, beta, moving_mean, moving_var), outputs = physical_arrays(ctx.call, inputs, outputs)
    xp, (mean, variance, inverse, unread, *scratches) = ctx.xp, ctx.temp
    out = unread if outputs[0] is None else outputs[0]
    mean, inverse = (
        scratch if out is None else out for scratch, out in zip((mean, inverse), outputs[1:3], strict=True)
    )
    further = () if p.fix_gamma else (gamma,)
    arrays = [(data, out, *statistics, beta, *further) for statistics in ((moving_mean, moving_var), (mean, variance))]
    by_moving, by_batch = _runs(pair, scratches, *arrays)

    def call() -> None:
        settle_gamma(p, ctx, gamma, outputs)
        if ctx.is_train and not p.use_global_stats:
            by_batch()
            invert(xp, variance, p.eps, inverse)
        else:
            by_moving()
            xp.copyto(mean, moving_mean)
            invert(xp, moving_var, p.eps, inverse)

    return call


@backward.kernel("cpu", level="library")
def _(p: BatchNormParams, call: CallSpec) -> Kernel | None:
    pair = _pair(p, call, (0, 1), _backward)
    if pair is None:
        return None
    return Kernel(partial(_bind_gradients, pair), _temps(call, call.inputs[1], call.inputs[3], pair))


def _bind_gradients(
    pair: _Pair, p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    (gout, data, gamma, mean, inverse, moving_mean, moving_var), outputs = physical_arrays(ctx.call, inputs, outputs)
    xp, (variance, ggamma, gbeta, unread, *scratches) = ctx.xp, ctx.temp
    gdata = unread if outputs[0] is None else outputs[0]
    further = () if p.fix_gamma else (gamma, ggamma)
    by_moving, by_batch = _runs(
        pair,
        scratches,
        (gout, data, gdata, moving_mean, moving_var, gbeta, *further),
        (gout, data, gdata, mean, variance, gbeta, *further),
    )

    def call() -> None:
        of_batch = ctx.is_train and not p.use_global_stats
        if of_batch:
            _variance(xp, inverse, p.eps, variance)
            by_batch()
        else:
            by_moving()
        if outputs[1] is not None:
            outputs[1][...] = 0 if p.fix_gamma else ggamma
        if outputs[2] is not None:
            outputs[2][...] = gbeta
        if of_batch:
            move(xp, moving_mean, mean, p.momentum, gbeta)
            move(xp, moving_var, variance, p.momentum, gbeta)

    return call


def _variance(xp: Any, inverse: Array, eps: float, out: Array) -> None:
    """The variance of which `inverse` is 1 / sqrt(variance + eps)."""
    xp.square(inverse, out=out)
    xp.reciprocal(out, out=out)
    xp.subtract(out, eps, out=out)
