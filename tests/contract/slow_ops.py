"""A plug-in file: operators that take their time, or the process with them. Loaded by the test servers (OPBOX_OPS)."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from opbox_ops.compute import Arrays, OpContext, Outputs
from opbox_ops.infer import all_same_shape
from opbox_ops.params import Float, Params
from opbox_ops.registry import register


class SlowParams(Params):
    seconds: Float = 0.1


slow = register("_test_slow", SlowParams)
fatal = register("_test_fatal")
for _op in (slow, fatal):
    _op.infer_shape(all_same_shape)


@slow.compute()
def _(p: SlowParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    time.sleep(p.seconds)
    outputs[0][...] = inputs[0]


@fatal.compute()
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
