"""What users do on mx.gpu(0) and mx.gpu(1): operators of their own, kernels, recurrent layers, training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from tests.ops.test_random import CONTINUOUS, DISCRETE, N, check

CONTEXTS = [mx.gpu(0), mx.gpu(1)]

pytestmark = pytest.mark.usefixtures("gpu")


class Double(mx.operator.CustomOp):
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("double_on_the_gpu")
class DoubleProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Double()


class Triple(mx.operator.NumpyOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        out_data[0][:] = in_data[0] * 3

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        in_grad[0][:] = out_grad[0] * 3


class Quadruple(mx.operator.NDArrayOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        out_data[0][:] = in_data[0] * 4

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        in_grad[0][:] = out_grad[0] * 4


OPERATORS = {
    "custom": (2, lambda x: mx.sym.Custom(x, op_type="double_on_the_gpu", name="t")),
    "numpy": (3, lambda x: Triple()(data=x, name="t")),
    "ndarray": (4, lambda x: Quadruple()(data=x, name="t")),
}


@pytest.mark.parametrize("ctx", CONTEXTS, ids=str)
@pytest.mark.parametrize("form", OPERATORS)
def test_operators_of_a_users_own(form: str, ctx: Any) -> None:
    factor, make = OPERATORS[form]
    x = mx.nd.array([[1.0, 2.0, 3.0]], ctx=ctx)
    gx = mx.nd.zeros((1, 3), ctx=ctx)
    executor = make(mx.sym.Variable("x")).bind(ctx, args={"x": x}, args_grad={"x": gx})
    assert executor.forward(is_train=True)[0].asnumpy().tolist() == [[factor, 2 * factor, 3 * factor]]
    executor.backward(mx.nd.array([[1.0, 10.0, 100.0]], ctx=ctx))
    assert gx.asnumpy().tolist() == [[factor, 10 * factor, 100 * factor]]


def test_head_gradients_of_another_context() -> None:
    x, gx = mx.nd.array([1.0, 2.0], ctx=mx.gpu(1)), mx.nd.zeros((2,), ctx=mx.gpu(1))
    executor = mx.sym.square(mx.sym.Variable("x")).bind(mx.gpu(1), args={"x": x}, args_grad={"x": gx})
    executor.forward(is_train=True)
    executor.backward(mx.nd.array([10.0, 100.0], ctx=mx.cpu()))
    assert gx.asnumpy().tolist() == [20, 400]


def test_a_kernel_of_a_users() -> None:
    ctx = mx.gpu(0)
    module = mx.rtc.CudaModule(
        'extern "C" __global__ void axpy(const float *x, float *y, float a) { y[threadIdx.x] += a * x[threadIdx.x]; }'
    )
    kernel = module.get_kernel("axpy", "const float *x, float *y, float a")
    x, y = mx.nd.arange(8, ctx=ctx), mx.nd.ones((8,), ctx=ctx)
    kernel.launch([x, y, 3.0], ctx, (1, 1, 1), (8, 1, 1))
    assert y.asnumpy().tolist() == [1 + 3 * i for i in range(8)]


def test_a_recurrent_layer() -> None:
    results = []
    for ctx in (mx.cpu(), mx.gpu(0)):
        rng = np.random.RandomState(0)
        cell = mx.rnn.FusedRNNCell(5, num_layers=2, mode="lstm", prefix="l_", bidirectional=True)
        net, _ = cell.unroll(3, mx.sym.Variable("data"), layout="TNC", merge_outputs=True)
        executor = net.simple_bind(ctx, data=(2, 3, 4))
        for name in sorted(executor.arg_dict):
            executor.arg_dict[name][:] = rng.uniform(-0.5, 0.5, executor.arg_dict[name].shape)
        out = executor.forward(is_train=True)[0]
        executor.backward(mx.nd.ones(out.shape, ctx=ctx))
        results.append([out.asnumpy(), *[executor.grad_dict[name].asnumpy() for name in sorted(executor.grad_dict)]])
    for cpu, gpu in zip(*results, strict=True):
        np.testing.assert_allclose(gpu, cpu, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ctx", CONTEXTS, ids=str)
def test_training_a_module(ctx: Any) -> None:
    rng = np.random.RandomState(0)
    x = rng.randn(64, 6).astype("f")
    y = (x[:, 0] > 0).astype("f") + (x[:, 1] > 0)
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=16)
    net = mx.sym.Activation(mx.sym.BatchNorm(net, fix_gamma=False), act_type="relu")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3), name="softmax")
    module = mx.mod.Module(net, context=ctx)
    data = mx.io.NDArrayIter(x, y, 16)
    module.fit(data, optimizer="adam", optimizer_params={"learning_rate": 0.05}, num_epoch=8)
    assert module.score(data, "acc")[0][1] > 0.9


def test_dropout_drops_some() -> None:
    ctx = mx.gpu(0)
    executor = mx.sym.Dropout(mx.sym.Variable("x"), p=0.3).bind(ctx, args={"x": mx.nd.ones((100, 100), ctx=ctx)})
    first, second = (executor.forward(is_train=True)[0].asnumpy() for _ in range(2))
    assert abs((first == 0).mean() - 0.3) < 0.03
    np.testing.assert_allclose(first[first != 0], 1 / 0.7, rtol=1e-6)
    assert (first != second).any()


@pytest.mark.parametrize(("name", "attrs", "wanted"), [*CONTINUOUS, *DISCRETE])
def test_distributions(name: str, attrs: dict[str, Any], wanted: Any) -> None:
    with mx.gpu(0):
        mx.random.seed(42)
        sample = getattr(mx.nd, name.removeprefix("_"))(**attrs, shape=(N,), ctx=mx.gpu(0)).asnumpy()
    check(sample, wanted, continuous=(name, attrs, wanted) in CONTINUOUS)


def test_shuffling_is_no_identity() -> None:
    numbers = mx.nd.shuffle(mx.nd.arange(100, ctx=mx.gpu(0))).asnumpy()
    assert sorted(numbers) == list(range(100))
    assert (numbers != np.arange(100)).any()
