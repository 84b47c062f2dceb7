"""ReLU as the last step of what is before it: of Winograd's and the matrix unit's convolutions, of products in blocks.

They write the larger of a sum and 0 where they would write the sum; NaN stays NaN. oneDNN's post-operation would make 0
of it, and a network that has diverged would not show it: its kernels stay without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...compute import Arrays, CallSpec, Kernel, OpContext, Outputs
from ...layout import physical_arrays
from ...nn.relu_epilogue import WITH_RELU, ReluEpilogueParams
from .blocked_product_kernel import BlockedKernel
from .convolution import forward_kernel
from .matmul import product_of
from .packable_product import PackableProduct
from .split_convolution import SplitConvolution
from .winograd_convolution import WinogradConvolution

_KERNELS: dict[str, Callable[[Any, CallSpec], Any]] = {"Convolution": forward_kernel, "FullyConnected": product_of}


def with_relu(kernel: Any) -> Any:
    """The kernel with ReLU behind it; None where it has no such kernel."""
    if isinstance(kernel, BlockedKernel | SplitConvolution):
        return replace(kernel, relu=True)
    if isinstance(kernel, WinogradConvolution):
        return replace(kernel, tiling=replace(kernel.tiling, relu=True))
    if isinstance(kernel, PackableProduct):
        unpacked, packing = with_relu(kernel.unpacked), with_relu(kernel.packing)
        return None if unpacked is None or packing is None else replace(kernel, unpacked=unpacked, packing=packing)
    return None


def _attach(name: str) -> None:
    @WITH_RELU[name].kernel("cpu", level="library")
    def _(p: ReluEpilogueParams, call: CallSpec) -> Kernel | None:
        kernel = with_relu(_KERNELS[name](p.params, call))
        return None if kernel is None else Kernel(partial(_bind, kernel), kernel.temps, kernel.packs)


def _bind(kernel: Any, p: ReluEpilogueParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    inputs, outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays = (*inputs[:2], outputs[0], *inputs[2:])
    run: Callable[[], Any] = kernel.packed(ctx.temp, arrays, ctx.mode) if ctx.packs else kernel.bind(ctx.temp, arrays)
    return run


for _name in WITH_RELU:
    _attach(_name)
