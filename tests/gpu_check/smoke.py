"""The first minute on a GPU: memory, a product, a formula, random numbers, convolutions, a network, steps, a kernel.

    python -m tests.gpu_check.smoke [FIGURES.json]

It prints a line for each, ends with 1 at the first that is wrong, and writes milliseconds, warm, of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.switches import VARIABLE
from opbox_protocol.errors import UnsupportedError

__all__ = ["CHECKS", "main"]

REPEATS = 5
"""Runs after the first; the fastest counts."""


def memory() -> None:
    x = np.arange(1 << 20, dtype="f")
    array = mx.nd.array(x, mx.gpu(0))
    np.testing.assert_array_equal(array.asnumpy(), x)
    np.testing.assert_array_equal(array.copyto(mx.cpu()).asnumpy(), x)


def product() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(256, 300)).astype("f"), rng.normal(size=(300, 200)).astype("f")
    result = mx.nd.dot(mx.nd.array(a, mx.gpu(0)), mx.nd.array(b, mx.gpu(0))).asnumpy()
    # 300 products in float32, in another order.
    np.testing.assert_allclose(result, a.astype("d") @ b, rtol=1e-4, atol=1e-4)


def formula() -> None:
    x = np.linspace(-3, 3, 10_001, dtype="f")
    array = mx.nd.array(x, mx.gpu(0))
    # CUDA's exp and tanh are within 2 units in the last place.
    np.testing.assert_allclose((array.tanh() * array.exp()).asnumpy(), np.tanh(x) * np.exp(x), rtol=1e-5, atol=1e-6)


def random() -> None:
    mx.random.seed(7, mx.gpu(0))
    drawn = mx.nd.random.normal(shape=(100_000,), ctx=mx.gpu(0)).asnumpy()
    assert abs(drawn.mean()) < 0.02, drawn.mean()  # 6 standard errors
    assert abs(drawn.std() - 1) < 0.02, drawn.std()
    assert len(np.unique(drawn[:1000])) > 990


def convolution() -> None:
    """By cuDNN and by columns: in single precision, and not in TF32, which is 100 times as far off."""
    rng = np.random.default_rng(0)
    data, weight, head = (rng.normal(size=shape) for shape in ((4, 16, 14, 14), (8, 16, 3, 3), (4, 8, 14, 14)))
    for off in (False, True):
        results = []
        for context, dtype in ((mx.cpu(), "float64"), (mx.gpu(0), "float32"), (mx.gpu(0), "float16")):
            arrays = [mx.nd.array(array, context, dtype) for array in (data, weight, head)]
            net = mx.sym.Convolution(
                mx.sym.Variable("data"),
                kernel=(3, 3),
                pad=(1, 1),
                num_filter=8,
                no_bias=True,
                cudnn_off=off,
                name="conv",
            )
            grads = [mx.nd.zeros(array.shape, context, dtype) for array in arrays[:2]]
            executor = net.bind(context, arrays[:2], grads)
            executor.forward(is_train=True)
            executor.backward(arrays[2:])
            results.append([array.asnumpy().astype("d") for array in (executor.outputs[0], *grads)])
        expected, single, half = results
        for k, array in enumerate(expected):
            largest = np.abs(array).max()
            # Sums of 144 to 784 products.
            assert np.abs(single[k] - array).max() < 2e-5 * largest, (off, k)
            assert np.abs(half[k] - array).max() < 1e-2 * largest, (off, k)


def small_network() -> mx.sym.Symbol:
    """Return a convolution, pooling, BatchNorm, ReLU, a full layer and a loss."""
    data = mx.sym.Variable("data")
    net = mx.sym.Pooling(
        mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name="conv"), kernel=(2, 2), stride=(2, 2)
    )
    net = mx.sym.FullyConnected(
        mx.sym.Activation(mx.sym.BatchNorm(net, name="bn"), act_type="relu"), num_hidden=10, name="fc"
    )
    return mx.sym.SoftmaxOutput(net, name="softmax")


def values_for(net: mx.sym.Symbol) -> dict[str, np.ndarray[Any, Any]]:
    """Return numbers for its arguments, the same each time."""
    rng = np.random.default_rng(0)
    shapes, _, _ = net.infer_shape(data=(8, 1, 14, 14))
    values = {n: rng.normal(0, 0.3, s).astype("f") for n, s in zip(net.list_arguments(), shapes, strict=True)}
    values["softmax_label"] = np.arange(8, dtype="f")
    return values


def network() -> None:
    net = small_network()
    values = values_for(net)
    results = []
    for context in (mx.cpu(), mx.gpu(0)):
        executor = net.simple_bind(context, data=(8, 1, 14, 14))
        for name, value in values.items():
            executor.arg_dict[name][:] = value
        executor.forward(is_train=True)
        executor.backward()
        results.append([executor.outputs[0].asnumpy(), *(executor.grad_dict[n].asnumpy() for n in sorted(values))])
    for expected, result in zip(*results, strict=True):
        # Sums of some hundreds of products in another order, divided by deviations of as few.
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def trained(context: mx.Context) -> list[np.ndarray[Any, Any]]:
    """Return what five steps of training leave: the weights, the statistics and the last output."""
    net = small_network()
    executor = net.simple_bind(context, data=(8, 1, 14, 14))
    for name, value in values_for(net).items():
        executor.arg_dict[name][:] = value
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, rescale_grad=1 / 8))
    weights = [name for name in executor.grad_dict if name not in ("data", "softmax_label")]
    for step in range(5):
        executor.arg_dict["data"][:] = np.random.default_rng(step).normal(size=(8, 1, 14, 14))
        executor.forward(is_train=True)
        executor.backward()
        for k, name in enumerate(weights):
            updater(k, executor.grad_dict[name], executor.arg_dict[name])
    arrays = [executor.arg_dict[name] for name in weights] + list(executor.aux_arrays) + executor.outputs
    return [array.asnumpy() for array in arrays]


def steps() -> None:
    """With CUDA graphs, which are recorded at the second run and replayed from the third on, and without."""
    switched_off = os.environ.get(VARIABLE)
    results = []
    try:
        for names in ("", "cuda-graphs"):
            os.environ[VARIABLE] = names
            results.append(trained(mx.gpu(0)))
    finally:
        del os.environ[VARIABLE]
        if switched_off is not None:
            os.environ[VARIABLE] = switched_off
    for replayed, eager, host in zip(*results, trained(mx.cpu()), strict=True):
        np.testing.assert_array_equal(replayed, eager)
        # Five steps, whose sums are in another order.
        np.testing.assert_allclose(eager, host, rtol=1e-2, atol=1e-3)


def kernel() -> None:
    source = """extern "C" __global__ void twice(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}"""
    function = mx.rtc.CudaModule(source).get_kernel("twice", "float *x, int n")
    x = mx.nd.ones((1000,), mx.gpu(0))
    function.launch([x, 1000], mx.gpu(0), (4, 1, 1), (256, 1, 1))
    np.testing.assert_array_equal(x.asnumpy(), 2)


CHECKS: dict[str, Callable[[], None]] = {
    check.__name__: check for check in (memory, product, formula, random, convolution, network, steps, kernel)
}


def main(arguments: list[str]) -> int:
    """Run the checks; see the module."""
    try:
        backend_for("gpu")
    except UnsupportedError as error:
        print(f"no GPU to check: {error.message}")
        return 1
    milliseconds: dict[str, float] = {}
    for name, check in CHECKS.items():
        check()  # compiles
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            check()
            times.append(time.perf_counter() - start)
        milliseconds[name] = round(min(times) * 1e3, 3)
        print(f"{name}: {milliseconds[name]} ms", flush=True)
        if arguments:
            Path(arguments[0]).write_text(json.dumps({"milliseconds": milliseconds}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
