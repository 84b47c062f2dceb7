"""RNN in float32 with its products in blocks, where those are to be taken (`product`).

NumPy's BLAS has threads of its own, which look for work on the cores of all others while a step's gates are computed.
With a matrix unit all of a layer's steps are one call (`rnn.unit_steps`), whose packed weights stay from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...compute import Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs
from ...rnn.operator import (
    RNNOperatorParams,
    backward,
    backward_temps_of,
    differentiate,
    forward_temps_of,
    op,
    pack,
    run,
    sizes_of,
)
from ...rnn.steps import Kernels
from ..algorithms.recurrent_cells import compiled_cells
from ..algorithms.unit_steps import UnitSteps, fits, unit_steps
from ..runtime.packed_runs import PackedRuns
from .product import block_matmul, blocked_kernel, packed_columns, packed_rows


def _is_in_blocks(p: RNNOperatorParams, call: CallSpec) -> bool:
    arrays = call.inputs[: len(call.inputs) - 1 if p.use_sequence_length else None]
    return call.plain and all(array.dtype == np.float32 for array in arrays) and blocked_kernel() is not None


def _steps_by_unit(p: RNNOperatorParams, data: ArraySpec) -> UnitSteps | None:
    """All of the steps in C by a matrix unit, where it takes them; cells that are clipped are not computed so."""
    return unit_steps() if p.lstm_state_clip_min is None and fits(sizes_of(p, data.shape)) else None


def _in_order(inputs: Arrays) -> Arrays:
    """The arrays, copied where they do not lie in order, as C reads them."""
    return tuple([np.ascontiguousarray(array) for array in inputs])


@op.kernel("cpu", level="library")
def _(p: RNNOperatorParams, call: CallSpec) -> Kernel | None:
    if not _is_in_blocks(p, call):
        return None
    kernels = Kernels(block_matmul, compiled_cells(), packed_rows=packed_rows, steps=_steps_by_unit(p, call.inputs[0]))
    temps = forward_temps_of(p, call, by_unit=kernels.steps is not None)
    # The parameters, of which one temporary has all weights packed.
    packs = ((1, list(temps).index("all_packed")),) if "all_packed" in temps else ()
    return Kernel(partial(_bind, kernels), tuple(temps.values()), packs)


def _bind(
    kernels: Kernels, p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    def runs(packs: bool = not ctx.packs) -> None:
        run(p, ctx, _in_order(inputs), outputs, kernels, packs)

    return PackedRuns(lambda: pack(p, ctx, _in_order(inputs), outputs, kernels), runs, ctx.mode) if ctx.packs else runs


@backward.kernel("cpu", level="library")
def _(p: RNNOperatorParams, call: CallSpec) -> Kernel | None:
    if not _is_in_blocks(p, call):
        return None
    # Gradients of sequences with lengths are NumPy's between the products.
    data = call.inputs[3 if p.mode == "lstm" else 2]
    steps = None if p.use_sequence_length else _steps_by_unit(p, data)
    kernels = Kernels(block_matmul, compiled_cells(), packed_columns, steps=steps)
    temps = backward_temps_of(p, call, by_unit=steps is not None)
    return Kernel.of(partial(_differentiate, kernels), temps=tuple(temps.values()))


def _differentiate(kernels: Kernels, p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    differentiate(p, ctx, _in_order(inputs), outputs, kernels)
