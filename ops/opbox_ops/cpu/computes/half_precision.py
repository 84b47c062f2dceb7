"""Operators in float16 and bfloat16 by their computes in float32, between conversions in C.

What is read is widened into temporaries, the compute runs on these, and what it writes is rounded once: as the
reference does, whose products are NumPy's. It takes what no compute of these types does: those of bfloat16 where the
processor multiplies it, max pooling in C, oneDNN's averages and BatchNorm.

oneDNN's convolutions in float16 are not used. They widen the numbers themselves and multiply float32, and there are
none for the gradients of weights but loops without vectors. Two threads with AVX-512 and its float16, forward
by oneDNN and by this, ms: 64 channels of 56 x 56 by 3 x 3 1.25 and 0.56, 8 images of 256 channels of 14 x 14 8.9 and
4.2, 256 channels of 56 x 56 to 64 by 1 x 1 0.70 and 0.68; with the gradients 967 and 1.9, 7,360 and 13, 453 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ... import registry
from ...accumulation import is_narrow
from ...bound_calls import as_one
from ...compute import LEVELS, Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, OpReq, Outputs, Reusable, Temp
from ...expression.conversion import converting, widened_call
from ...infer import size_of
from ...layout import logical, physical, physical_shape
from ...nn.shared_product import STACKED, SUMMED
from ...operator import Op
from ..runtime.packed_runs import PackedRuns

__all__: list[str] = []


def _with_gradients(*names: str) -> list[str]:
    return [name for forward in names for name in (forward, f"_backward_{forward}")]


_BY_LIBRARY = (
    "Convolution_v1",
    *_with_gradients("BatchNorm", "Convolution", "LRN", "LayerNorm", "Pooling", "RNN"),
)
"""Operators with computes in float32 above the reference's, which take those calls alone."""
_BY_NUMPY = _with_gradients(
    *("Deconvolution", "FullyConnected", "batch_dot", "dot", "GroupNorm", "InstanceNorm", "L2Normalization"),
    *("softmax", "softmin", "log_softmax", "SoftmaxActivation", "SoftmaxOutput", "max", "min", "mean", "norm"),
)
"""Operators whose reference takes many sweeps, for which NumPy converts number by number, in one thread."""
_BY_IMAGES = ("Convolution", "Deconvolution")
"""Operators whose images are computed some at a time."""
SCRATCH_BYTES = 8 << 20
"""Bytes of float32 that some images of data and out take together, or one that takes more: MobileNet's inference of 8
images has an arena of 24 MB in place of 58, and takes as long."""
MAX_COPIED_NUMBERS = 1 << 13
"""Maximum number of elements of all arrays for a call without a graph to be bound once, to its own arrays: NumPy
converts them in less time than binding takes."""
_FLOAT32 = np.dtype(np.float32)


class _Widening:
    """The compute of an operator for calls with arrays of 16 bits.

    Args:
        op: the operator.
        level: the lowest level of the compute in float32 that it runs.
    """

    def __init__(self, op: Op, level: str) -> None:
        self.op, self.level = op, level
        self._by_images = op.name in _BY_IMAGES

    def _images(self, call: CallSpec) -> int:
        """How many images of input 0 and output 0 are computed together: as fit the scratch, all else in full."""
        specs = call.inputs[0], call.outputs[0]
        batch = specs[0].shape[0] if specs[0].shape else 1
        if not self._by_images or batch < 2:
            return batch
        image = sum(_FLOAT32.itemsize * size_of(spec.shape) for spec in specs) // batch
        most = max(1, SCRATCH_BYTES // max(1, image))
        return max(images for images in range(1, batch + 1) if not batch % images and images <= most)

    def _piece(self, call: CallSpec) -> CallSpec:
        """The call of so many images."""
        images = self._images(call)
        if not self._by_images or images == call.inputs[0].shape[0]:
            return call
        data, out = (replace(spec, shape=(images, *spec.shape[1:])) for spec in (call.inputs[0], call.outputs[0]))
        return replace(call, inputs=(data, *call.inputs[1:]), outputs=(out, *call.outputs[1:]))

    def _within(self, p: Any, call: CallSpec) -> tuple[CallSpec, Kernel] | None:
        """The call in float32 and its kernel; None where its level is too low, or for other types.

        States are not widened: they would have to be written back.
        """
        specs = (*call.inputs, *call.outputs)
        if not any(is_narrow(spec.dtype) for spec in specs) or any(spec.dtype == np.float64 for spec in specs):
            return None
        if any(is_narrow(call.inputs[i].dtype) for i in self.op.aux_indices(p)):
            return None
        wide = widened_call(self._piece(call))
        kernel = self.op.find_kernel(p, wide)
        return None if kernel is None or kernel.rank < LEVELS.index(self.level) else (wide, kernel)

    def choose(self, p: Any, call: CallSpec) -> Kernel | None:
        """The kernel of a call with arrays of 16 bits; it is asked last, behind the computes for these types."""
        within = self._within(p, call)
        if within is None:
            return None
        wide, kernel = within
        first = len(call.inputs) + len(call.outputs)
        return Kernel(
            partial(self._bind, wide, kernel),
            (*self._own_temps(call), *kernel.temps),
            tuple([(i, first + k) for i, k in kernel.packs]),
            partial(_rebind, wide, kernel) if self._is_copied(call) else None,
        )

    def _own_temps(self, call: CallSpec) -> list[Temp]:
        """Room for each input and output of a piece in float32, of no elements where it is so, or not wanted."""
        call = self._piece(call)
        wanted = [*call.inputs, *(spec if call.wants(k) else None for k, spec in enumerate(call.outputs))]
        return [Temp(physical_shape(spec) if spec is not None and is_narrow(spec.dtype) else (0,)) for spec in wanted]

    def _bind(
        self, wide: CallSpec, kernel: Kernel, p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs
    ) -> Callable[[], Any]:
        call, count = ctx.call, len(inputs)
        first = count + len(outputs)
        scratches, temp = ctx.temp[:first], ctx.temp[first:]
        ins, widening = _through(call.inputs, inputs, scratches[:count])
        outs, narrowing = _through(call.outputs, outputs, scratches[count:])
        req = tuple([OpReq.WRITE if one == OpReq.INPLACE else one for one in ctx.req])
        within = replace(ctx, call=wide, temp=temp, req=req, prepared=None, alike=None)
        run = kernel.bind(p, within, ins, outs)
        packed = {i for i, _ in kernel.packs} if ctx.packs else set()
        images = self._images(call)
        batch = len(inputs[0]) if self._by_images else images
        pieces: list[Any] = [slice(at, at + images) for at in range(0, batch, images)] if images < batch else [...]
        whole = [converting(*pair) for i, pair in widening.items() if i not in packed and (i or len(pieces) == 1)]
        calls: list[Callable[[], Any]] = []
        for piece in pieces:
            if len(pieces) > 1:
                calls.append(converting(widening[0][0][piece], widening[0][1]))
            calls.append(run)
            calls += [converting(scratch, array[piece]) for array, scratch in narrowing.values()]
        runs = as_one([*whole, *calls])
        # The kernel packs a weight again where its widened copy is made again: both by the number of `mode`.
        weights = [converting(*pair) for i, pair in widening.items() if i in packed]
        return PackedRuns(as_one(weights), runs, ctx.mode) if weights else runs

    def _is_copied(self, call: CallSpec) -> bool:
        numbers = sum(size_of(spec.shape) for spec in (*call.inputs, *call.outputs))
        return self.level == LEVELS[0] and numbers <= MAX_COPIED_NUMBERS


def _rebind(wide: CallSpec, kernel: Kernel, p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Reusable:
    """A call on copies of its arrays in float32."""
    ins: list[Any] = [np.empty(spec.shape, spec.dtype) for spec in wide.inputs]
    pairs = zip(outputs, wide.outputs, strict=True)
    outs: list[Any] = [None if array is None else np.empty(spec.shape, spec.dtype) for array, spec in pairs]
    temp = ctx.temp[len(inputs) + len(outputs) :]
    call = kernel.bind(p, replace(ctx, call=wide, temp=temp, prepared=None, alike=None), ins, outs)

    def run(inputs: Arrays, outputs: Outputs) -> None:
        for own, array in zip(ins, inputs, strict=True):
            np.copyto(own, array)
        call()
        for own, array in zip(outs, outputs, strict=True):
            if array is not None:
                np.copyto(array, own, casting="unsafe")

    return run


def _through(
    specs: Sequence[ArraySpec], arrays: Sequence[Any], scratches: Sequence[Array]
) -> tuple[list[Any], dict[int, tuple[Array, Array]]]:
    """The arrays to compute on, and by position an array of 16 bits and its scratch, both as they lie."""
    used, pairs = list(arrays), {}
    for k, (spec, array, scratch) in enumerate(zip(specs, arrays, scratches, strict=True)):
        if array is not None and is_narrow(spec.dtype):
            used[k] = logical(scratch, spec.layout)
            pairs[k] = physical(array, spec.layout), scratch
    return used, pairs


def _attach(op: Op, level: str) -> None:
    op.kernel("cpu", level="library", last=True)(_Widening(op, level).choose)


def _attach_all() -> None:
    for name in _BY_LIBRARY:
        _attach(registry.get(name), "library")
    for name in _BY_NUMPY:
        _attach(registry.get(name), "reference")
    for op in (STACKED, SUMMED):
        _attach(op, "reference")


registry.when_loaded(_attach_all)
