"""Code of users in a process of its own, with what keeps it in, on each device: operators, kernels, training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.conftest import pretend
from tests.contract.isolation import settings
from tests.contract.live import Live

ROOT = Path(__file__).parents[2]
PRETEND = [ROOT / "tests" / "pretend_gpu", ROOT / ".pretend-gpu", (ROOT / ".pretend-gpu" / "kernels").resolve()]
X = np.arange(6, dtype=np.float32)


class Scaled(mx.operator.CustomOp):
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * 3)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], mx.nd.array(out_grad[0].asnumpy() * 3))


@mx.operator.register("scaled_on_a_device")
class ScaledProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Scaled()


def custom(context: Any) -> None:
    """Forward by arrays of the device, backward by NumPy's."""
    x, gx = mx.nd.array(X, context), mx.nd.zeros(X.shape, context)
    net = mx.sym.Custom(mx.sym.Variable("x"), op_type="scaled_on_a_device")
    executor = net.bind(context, args={"x": x}, args_grad={"x": gx})
    assert executor.forward(is_train=True)[0].asnumpy().tolist() == (X * 3).tolist()
    executor.backward(mx.nd.array(X, context))
    assert gx.asnumpy().tolist() == (X * 3).tolist()


def kernel(context: Any) -> None:
    source = 'extern "C" __global__ void twice(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }'
    twice = mx.rtc.CudaModule(source).get_kernel("twice", "float *x, int n")
    x = mx.nd.array(X, context)
    twice.launch([x, X.size], context, (1, 1, 1), (32, 1, 1))
    assert x.asnumpy().tolist() == (X * 2).tolist()


def training(context: Any) -> None:
    """With the user's operator among the server's."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    net = mx.sym.SoftmaxOutput(mx.sym.Custom(net, op_type="scaled_on_a_device"), name="softmax")
    data = np.random.default_rng(0).normal(size=(64, 4)).astype("f")
    batches = mx.io.NDArrayIter(data, (data.sum(axis=1) > 0).astype("f"), 16)
    module = mx.mod.Module(net, context=context)
    module.fit(batches, num_epoch=6, optimizer_params={"learning_rate": 0.3})
    assert dict(module.score(batches, "acc"))["accuracy"] > 0.9  # a line separates them; 0.5 is chance


@pytest.mark.compiler
@pytest.mark.parametrize("work", [custom, kernel, training], ids=lambda work: work.__name__)
def test_code_of_users(start: Callable[..., Live], device: str, work: Callable[[Any], None]) -> None:
    # A first kernel takes its compiler's time.
    own = settings(OPBOX_CODE_DEADLINE_S="60", OPBOX_CODE_MEMORY_BYTES=str(8 << 30))
    if device == "gpu" and pretend():  # its driver is in the tests' folder, and no process that is kept in starts g++
        work(mx.gpu(0))
        own["OPBOX_CODE_READS"] = json.dumps([str(path) for path in PRETEND])
    server = start("process", **own)
    connection.use(HttpTransport(server.url, "py-secret-of-22-characters"))
    try:
        work(mx.gpu(0) if device == "gpu" else mx.cpu())
        assert server.code_workers()
    finally:
        connection.use(None)
