"""Programs end with work pending: by their last line, by an exception, by SIGTERM. None crashes or leaves a session."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests import slices

Sessions = Callable[[], list[Any]]

pytestmark = pytest.mark.timeout(300)

PENDING = """
import numpy as np
import opbox as mx

net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=16, pad=(1, 1))
net = mx.sym.Activation(mx.sym.BatchNorm(net), act_type="relu")
net = mx.sym.Flatten(mx.sym.Pooling(net, global_pool=True, kernel=(1, 1), pool_type="avg"))
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=5), name="softmax")
label = [("softmax_label", (2,))]
shared = mx.mod.Module(net)
shared.bind([("data", (2, 3, 32, 32))], label)
shared.init_params()
outputs = []
for size in range(16, 76):
    shape = (2, 3, size, size)
    module = mx.mod.Module(net)
    module.bind([("data", shape)], label, shared_module=shared)
    module.forward(mx.io.DataBatch([mx.nd.array(np.ones(shape))], [mx.nd.zeros((2,))]), is_train=True)
    module.backward()
    outputs.append(module.get_outputs()[0])
mx.cpu().session.flush()
"""
ENDS = {
    "the last line": ("", 0),
    "an exception": ("raise RuntimeError('the end')", 1),
    "sys.exit": ("import sys\nsys.exit(3)", 3),
    "SIGTERM": ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()", -signal.SIGTERM),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_with_work_pending(program_environment: dict[str, str], live_sessions: Sessions, end: str) -> None:
    last, status = ENDS[end]
    for _ in range(slices.amount("ends of a program with work pending")):
        done = subprocess.run(
            [sys.executable, "-c", PENDING + last], env=program_environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == status, done.stderr
    assert live_sessions() == []


def test_a_handler_of_the_program_s_own_stays(program_environment: dict[str, str], live_sessions: Sessions) -> None:
    source = (
        "import os, signal, sys\nimport opbox as mx\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))\n"
        "mx.nd.ones((2,)).asnumpy()\nos.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], env=program_environment, timeout=120)
    assert done.returncode == 7
    assert live_sessions() == []
