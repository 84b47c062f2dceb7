"""A plug-in file: an operator that waits until a file is there. Loaded by a test's server (OPBOX_OPS)."""

from __future__ import annotations

import time
from pathlib import Path

from opbox_ops.compute import Arrays, OpContext, Outputs
from opbox_ops.infer import all_same_shape
from opbox_ops.params import Params
from opbox_ops.registry import register


class GateParams(Params):
    path: str = ""


gate = register("_test_gate", GateParams)
gate.infer_shape(all_same_shape)


@gate.compute()
def _(p: GateParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    while not Path(p.path).exists():
        time.sleep(0.01)
    outputs[0][...] = inputs[0]
