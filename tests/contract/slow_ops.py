"""A plug-in file: operators that take their time, or the process with them. Loaded by the test servers (OPBOX_OPS)."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import Any

import numpy as np

from opbox_ops.compute import Arrays, CallSpec, OpContext, Outputs, Temp
from opbox_ops.infer import all_same_shape
from opbox_ops.params import Float, Params
from opbox_ops.registry import register


class SlowParams(Params):
    seconds: Float = 0.1


slow = register("_test_slow", SlowParams)
holding = register("_test_holding", SlowParams)
fatal = register("_test_fatal")
greedy = register("_test_greedy")
broken = register("_test_broken")
unruly = register("_test_unruly")
for _op in (slow, holding, fatal, greedy, broken, unruly):
    _op.infer_shape(all_same_shape)


@slow.compute()
def _(p: SlowParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    time.sleep(p.seconds)
    outputs[0][...] = inputs[0]


@holding.compute()
def _(p: SlowParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    """Keep the interpreter in one call in C: no other thread of the process runs any Python."""
    begun, trial = time.thread_time(), 10_000_000
    any(itertools.repeat(False, trial))
    any(itertools.repeat(False, round(trial * p.seconds / (time.thread_time() - begun))))
    outputs[0][...] = inputs[0]


@fatal.compute()
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@greedy.compute()
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    np.empty(6 << 30, np.uint8)  # which no budget has been asked for
    outputs[0][...] = inputs[0]


@broken.compute()
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    raise KeyError("a-fault-of-the-operator")


def _unruly(p: Any, call: CallSpec) -> list[Temp]:
    return _unruly(p, call)


@unruly.compute(temps=_unruly)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0][...] = inputs[0]
