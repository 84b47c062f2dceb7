"""RNN in float32 with its products in blocks, where those are to be taken (`product`).

NumPy's BLAS has threads of its own, which look for work on the cores of all others while a step's gates are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
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


def _steps_by_unit(p: RNNOperatorParams, call: CallSpec) -> UnitSteps | None:
    """All of the steps in C by a matrix unit, where it takes them; cells that are clipped are not computed so."""
    fitting = p.lstm_state_clip_min is None and fits(sizes_of(p, call.inputs[0].shape))
    return unit_steps() if fitting else None


def _in_order(inputs: Arrays) -> Arrays:
    """The arrays, copied where they do not lie in order, as C reads them."""
    return tuple([np.ascontiguousarray(array) for array in inputs])


def _forward_temps(p: RNNOperatorParams, call: CallSpec) -> dict[str, Temp]:
    return forward_temps_of(p, call, by_unit=_steps_by_unit(p, call) is not None)


def _attach(
    op: Op,
    run: Callable[..., None],
    temps: Callable[[Any, CallSpec], dict[str, Temp]],
    kernels: Callable[[Any, CallSpec], Kernels],
) -> None:
    @op.compute("cpu", level="library", accepts=_is_in_blocks, temps=lambda p, call: list(temps(p, call).values()))
    def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        run(p, ctx, _in_order(inputs), outputs, kernels(p, ctx.call))


def _forward_kernels(p: RNNOperatorParams, call: CallSpec) -> Kernels:
    return Kernels(block_matmul, compiled_cells(), packed_rows=packed_rows, steps=_steps_by_unit(p, call))


def _backward_kernels(p: RNNOperatorParams, call: CallSpec) -> Kernels:
    return Kernels(block_matmul, compiled_cells(), packed_columns)


_attach(op, run, _forward_temps, _forward_kernels)
_attach(backward, differentiate, backward_temps_of, _backward_kernels)
