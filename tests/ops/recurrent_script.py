"""A script that computes two layers of LSTM and their gradients, for what threads may change."""

from __future__ import annotations

__all__ = ["recurrent_script"]


def recurrent_script(time: int, batch: int, inputs: int, hidden: int) -> str:
    """The script, which writes all outputs and gradients."""
    return f"""
import sys
import numpy as np
import opbox as mx
rng, sizes = np.random.default_rng(0), dict(mode="lstm", state_size={hidden}, num_layers=2)
data = mx.sym.RNN(*map(mx.sym.Variable, ("data", "parameters", "h", "c")), **sizes)
executor = data.simple_bind(mx.cpu(), data=({time}, {batch}, {inputs}))
for array in executor.arg_dict.values():
    array[:] = rng.normal(size=array.shape) / {hidden}**0.5
executor.forward(is_train=True)
executor.backward(executor.outputs)
for array in (*executor.outputs, *executor.grad_arrays):
    sys.stdout.buffer.write(array.asnumpy().tobytes())
"""
