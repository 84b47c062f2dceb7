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
)
from ..rnn.steps import Kernels
from .product import block_matmul, blocked_kernel, packed_columns, packed_rows


def _is_in_blocks(p: RNNOperatorParams, call: CallSpec) -> bool:
    arrays = call.inputs[: len(call.inputs) - 1 if p.use_sequence_length else None]
    return call.plain and all(array.dtype == np.float32 for array in arrays) and blocked_kernel() is not None


def _kernels(inputs: Arrays) -> Kernels:
    """Steps in C read arrays that lie in order."""
    cells = compiled_cells() if all(array.flags.c_contiguous for array in inputs) else None
    return Kernels(block_matmul, cells, packed_columns, packed_rows)


def _attach(op: Op, run: Callable[..., None], temps: Callable[[Any, CallSpec], dict[str, Temp]]) -> None:
    @op.compute("cpu", level="library", accepts=_is_in_blocks, temps=lambda p, call: list(temps(p, call).values()))
    def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        run(p, ctx, inputs, outputs, _kernels(inputs))


_attach(op, run, forward_temps_of)
_attach(backward, differentiate, backward_temps_of)
