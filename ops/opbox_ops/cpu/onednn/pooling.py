"""Pooling by oneDNN: max and avg, one to three dimensions, channels second or last; forward and gradients.

Where there are kernels for max in C (`nn/max_pooling`), they are asked first.

oneDNN's gradient of max wants what forward noted of each window. MXNet's backward has data instead, so the gradient
pools once more, into temporaries, and takes the note from that. oneDNN's max passes NaN over: where data has one, the
reference computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...compute import LEVELS, PLAIN, Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs, Temp
from ...layout import physical_arrays, physical_shape, share_layout
from ...nn.pooling import PoolingParams, backward, op, taps_of
from ...nn.taps import Taps
from ...nn.window import channels_first, is_last
from ...operator import Op
from ..runtime.memory_format import MemoryFormat, memory_of
from .cache import MAX_CACHED_KERNELS
from .library import Algorithm, ArgumentNumber, Propagation, dims
from .primitive import Operand, PrimitiveKernel, Runs, takes


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def _forward(data: MemoryFormat, out: MemoryFormat, algorithm: Algorithm, taps: Taps) -> PrimitiveKernel | None:
    operands = [Operand(ArgumentNumber.SOURCE, data), Operand(ArgumentNumber.DESTINATION, out, written=True)]

    def arguments(source: int, target: int) -> tuple[Any, ...]:
        return (Propagation.TRAINING, algorithm, source, target, *_window(taps))

    return PrimitiveKernel.of("pooling_forward", operands, arguments)


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def _backward(gout: MemoryFormat, gdata: MemoryFormat, algorithm: Algorithm, taps: Taps) -> PrimitiveKernel | None:
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, gout),
        Operand(ArgumentNumber.DIFF_SOURCE, gdata, written=True),
    ]

    def arguments(target: int, source: int) -> tuple[Any, ...]:
        return (algorithm, source, target, *_window(taps))

    hint = _forward(gdata, gout, algorithm, taps)
    return None if hint is None else PrimitiveKernel.of("pooling_backward", operands, arguments, hint)


def _window(taps: Taps) -> list[Any]:
    """Stride, kernel, dilation, padding before and after, as oneDNN takes them."""
    return [dims(numbers) for numbers in (taps.stride, taps.kernel, (0,) * len(taps.kernel), taps.pad, _after(taps))]


def _needed(taps: Taps) -> list[int]:
    """Return how many positions the last window reaches beyond the data, along each dimension."""
    sizes = zip(taps.out, taps.stride, taps.kernel, taps.data, taps.pad, strict=True)
    return [(o - 1) * s + k - n - q for o, s, k, n, q in sizes]


def _after(taps: Taps) -> tuple[int, ...]:
    """The padding after the data that gives as many windows as there are."""
    return tuple(max(needed, q) for needed, q in zip(_needed(taps), taps.pad, strict=True))


def _algorithm(p: PoolingParams, taps: Taps) -> Algorithm | None:
    """oneDNN's name for this pooling; None where it has none."""
    if not (taps.meet_data and taps.fit_one_call):
        return None
    if p.pool_type == "max":
        return Algorithm.POOLING_MAX
    if p.pool_type != "avg":
        return None
    if p.count_include_pad is False:
        return Algorithm.POOLING_AVERAGE
    # What lies beyond the padding is not counted; oneDNN would.
    beyond = any(needed > q for needed, q in zip(_needed(taps), taps.pad, strict=True))
    return None if beyond else Algorithm.POOLING_AVERAGE_WITH_PADDING


def _pooling_kernel(
    p: PoolingParams, call: CallSpec, data: ArraySpec, out: ArraySpec, *, gradient: bool
) -> PrimitiveKernel | None:
    if not share_layout(call, range(len(call.inputs)), (0,)) or not takes(data, out):
        return None
    if p.pool_type == "max" and data.dtype != np.float32:
        return None  # a search for NaN in 16 bits takes longer than all of `half_precision`
    ndim = len(data.shape) - 2
    taps = taps_of(p, channels_first(data.shape, p.layout) or (), channels_first(out.shape, p.layout) or ())
    algorithm = _algorithm(p, taps)
    if algorithm is None:
        return None
    order = (0, ndim + 1, *range(1, ndim + 1)) if is_last(p.layout) else None
    memories = memory_of(data, order), memory_of(out, order)
    return _backward(memories[1], memories[0], algorithm, taps) if gradient else _forward(*memories, algorithm, taps)


@dataclass(frozen=True, slots=True)
class _Reference:
    """NumPy's kernel of the operator, for max where data has a NaN; None for other pooling.

    Its temporaries are the first ones.
    """

    kernel: Kernel | None

    @classmethod
    def of(cls, operator: Op, p: PoolingParams, call: CallSpec) -> _Reference:
        if p.pool_type != "max":
            return cls(None)
        sides = (tuple([replace(spec, layout=PLAIN) for spec in side]) for side in (call.inputs, call.outputs))
        inputs, outputs = sides
        return cls(operator.choose(p, replace(call, inputs=inputs, outputs=outputs), LEVELS[0]))

    @property
    def temps(self) -> tuple[Temp, ...]:
        return () if self.kernel is None else self.kernel.temps

    def unless_nan(
        self, runs: Runs, p: PoolingParams, ctx: OpContext, arrays: tuple[Arrays, Outputs], data: Array
    ) -> Callable[[], Any]:
        """Return a call of `runs`, or of NumPy's kernel where `data` has a NaN."""
        kernel = self.kernel
        if kernel is None:
            return runs
        context = replace(ctx, temp=ctx.temp[: len(self.temps)])

        def call() -> None:
            if np.isnan(data.max()):
                kernel(p, context, *arrays)
            else:
                runs()

        return call


@op.kernel("cpu", level="library", last=True)
def _(p: PoolingParams, call: CallSpec) -> Kernel | None:
    chosen = _pooling_kernel(p, call, call.inputs[0], call.outputs[0], gradient=False)
    if chosen is None:
        return None
    reference = _Reference.of(op, p, call)
    return Kernel(partial(_bind, chosen, reference), (*reference.temps, *chosen.temps, chosen.workspace))


def _bind(
    chosen: PrimitiveKernel, reference: _Reference, p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    (data, *_), (out, *_) = physical_arrays(ctx.call, inputs, outputs)
    *temps, workspace = ctx.temp[len(reference.temps) :]
    runs = chosen.bind(temps, (data, out), workspace=workspace)
    return reference.unless_nan(runs, p, ctx, (inputs, outputs), data)


@backward.kernel("cpu", level="library", last=True)
def _(p: PoolingParams, call: CallSpec) -> Kernel | None:
    arrays, gout = (call.outputs[0], call.inputs[0]), call.inputs[0]
    chosen = _pooling_kernel(p, call, *arrays, gradient=True)
    if chosen is None:
        return None
    reference = _Reference.of(backward, p, call)
    again = _pooling_kernel(p, call, *arrays, gradient=False) if p.pool_type == "max" else None
    behind = () if again is None else (*again.temps, Temp(physical_shape(gout), gout.dtype), again.workspace)
    return Kernel(partial(_bind_gradient, chosen, again, reference), (*reference.temps, *chosen.temps, *behind))


def _bind_gradient(
    chosen: PrimitiveKernel,
    again: PrimitiveKernel | None,
    reference: _Reference,
    p: PoolingParams,
    ctx: OpContext,
    inputs: Arrays,
    outputs: Outputs,
) -> Callable[[], Any]:
    """The gradient; for max `again` pools once more before it, into its output and its note: the last temporaries."""
    (gout, *others), (gdata, *_) = physical_arrays(ctx.call, inputs, outputs)
    own, first = ctx.temp[len(reference.temps) :], len(chosen.temps)
    if again is None:
        return chosen.bind(own[:first], (gout, gdata))
    *temps, pooled, workspace = own[first:]
    runs = again.bind(temps, (others[0], pooled), workspace=workspace)
    runs = chosen.bind(own[:first], (gout, gdata), runs, workspace)
    return reference.unless_nan(runs, p, ctx, (inputs, outputs), others[0])
