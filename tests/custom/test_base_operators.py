"""NumpyOp and NDArrayOp themselves, which copy their input, on a server that gets their source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.contract.live import TOKENS, Live

PROGRAM = """
import opbox as mx
for kind in (mx.operator.NumpyOp, mx.operator.NDArrayOp):
    executor = kind()(mx.sym.Variable("x"), name="copy").simple_bind(mx.cpu(), x=(2,))
    executor.arg_dict["x"][:] = 3
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones(2))
    print(executor.outputs[0].asnumpy().tolist(), executor.grad_dict["x"].asnumpy().tolist())
"""


def test_the_base_classes_are_operators(tmp_path: Path) -> None:
    live = Live("process", tmp_path)
    try:
        environment = {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["py"], "HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    finally:
        live.stop()
    assert done.stdout.splitlines() == ["[3.0, 3.0] [1.0, 1.0]"] * 2, done.stderr
