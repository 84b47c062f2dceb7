"""RNN in float32 with its products in blocks, where those are to be taken (`product`).

NumPy's BLAS has threads of its own, which look for work on the cores of all others while a step's gates are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..operator import Op
from ..rnn.cells import compiled_cells
from ..rnn.operator import (
    RNNOperatorParams,
    backward,
    backward_temps_of,
    differentiate,
    forward_temps_of,
    op,
    run,
    sizes_of,
)
from ..rnn.steps import Kernels
from ..rnn.unit_steps import UnitSteps, fits, unit_steps
from .product import block_matmul, blocked_kernel, packed_columns, packed_rows


def _is_in_blocks(p: RNNOperatorParams, call: CallSpec) -> bool:
    arrays = call.inputs[: len(call.inputs) - 1 if p.use_sequence_length else None]
    return call.plain and all(array.dtype == np.float32 for array in arrays) and blocked_kernel() is not None


def _steps_by_unit(p: RNNOperatorParams, data: ArraySpec) -> UnitSteps | None:
    """All of the steps in C by a matrix unit, where it takes them; cells that are clipped are not computed so."""
    return unit_steps() if p.lstm_state_clip_min is None and fits(sizes_of(p, data.shape)) else None


def _forward_kernels(p: RNNOperatorParams, call: CallSpec) -> Kernels:
    return Kernels(block_matmul, compiled_cells(), packed_rows=packed_rows, steps=_steps_by_unit(p, call.inputs[0]))


def _backward_kernels(p: RNNOperatorParams, call: CallSpec) -> Kernels:
    """Gradients of sequences with lengths are NumPy's between the products."""
    data = call.inputs[3 if p.mode == "lstm" else 2]
    steps = None if p.use_sequence_length else _steps_by_unit(p, data)
    return Kernels(block_matmul, compiled_cells(), packed_columns, steps=steps)


def _attach(
    op: Op,
    run: Callable[..., None],
    temps: Callable[[Any, CallSpec, bool], dict[str, Temp]],
    kernels: Callable[[Any, CallSpec], Kernels],
) -> None:
    def temps_of(p: RNNOperatorParams, call: CallSpec) -> list[Temp]:
        return list(temps(p, call, kernels(p, call).steps is not None).values())

    @op.compute("cpu", level="library", accepts=_is_in_blocks, temps=temps_of)
    def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        # C reads arrays that lie in order.
        run(p, ctx, tuple([np.ascontiguousarray(array) for array in inputs]), outputs, kernels(p, ctx.call))


_attach(op, run, forward_temps_of, _forward_kernels)
_attach(backward, differentiate, backward_temps_of, _backward_kernels)
