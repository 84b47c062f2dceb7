"""What an operator of one's own costs: softmax in each form that users write it in, and built in, side by side.

    python benchmarks/custom_op_paths.py [--gpu]

CustomOp and NumpyOp compute in NumPy, NDArrayOp with mx.nd, "CUDA" is an NDArrayOp of two kernels: compiled for a GPU
with --gpu, and else run through the CPU's emulator, which checks every access.

First per call, in process, at (128, 10): forward and backward of an executor, over calling the same function on arrays
directly. Then a training run of the perceptron of examples/custom_softmax.py with each of them.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.custom import Definitions
from opbox_service.executor import bind
from opbox_service.graph.json import load
from opbox_service.quota import Budget

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from custom_softmax import SoftmaxProp, perceptron, train
from ndarray_softmax_cuda import NDArraySoftmax as CudaSoftmax
from numpy_softmax import NumpySoftmax

SHAPE = (128, 10)
REPEATS = 2000
DEVICE = "gpu" if "--gpu" in sys.argv else "cpu"


class ArraySoftmax(mx.operator.NDArrayOp):
    """On NDArrays alone."""

    def __init__(self) -> None:
        super().__init__(False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]]

    def forward(self, in_data, out_data):
        out_data[0][:] = mx.nd.softmax(in_data[0], axis=1)

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = out_data[0] - mx.nd.one_hot(in_data[1], depth=out_data[0].shape[1])


class Copy(mx.operator.CustomOp):
    """As little as an operator on numpy arrays can do."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.array(in_data[0].asnumpy()))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], mx.nd.array(out_grad[0].asnumpy()))


@mx.operator.register("copy_of_mine")
class CopyProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Copy()


def softmax(x: np.ndarray, y: np.ndarray) -> None:
    """The arithmetic of the operators' forward."""
    y[:] = np.exp(x - x.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)


def gradient(label: np.ndarray, y: np.ndarray, dx: np.ndarray) -> None:
    """The arithmetic of the operators' backward."""
    dx[:] = y
    dx[np.arange(len(label)), label.astype(int)] -= 1.0


def executor(net: mx.sym.Symbol) -> tuple[Callable[[], None], Callable[[], None]]:
    """Its forward and backward, without a client."""
    backend = backend_for(DEVICE)
    own = Definitions(backend, backend.random(0), DEVICE, Budget(1 << 40))
    for kind, name, cls in (
        ("Custom", "softmax", SoftmaxProp),
        ("Custom", "copy_of_mine", CopyProp),
        ("_NumpyOp", "NumpySoftmax", NumpySoftmax),
        ("_NDArrayOp", "ArraySoftmax", ArraySoftmax),
        ("_NDArrayOp", "NDArraySoftmax", CudaSoftmax),
    ):
        own.add(kind, name, name, live=cls)
    random = np.random.default_rng(0)
    with own.scope():
        graph = load(net.tojson())
        args = {"data": backend.put(random.normal(size=SHAPE).astype("float32"))}
        if len(graph.argument_names) > 1:
            args[graph.argument_names[1]] = backend.put(random.integers(0, SHAPE[1], SHAPE[0]).astype("float32"))
        grads = {"data": backend.put(np.zeros(SHAPE, "float32"))}
        bound = bind(graph, args=args, grads=grads, backend=backend, random=backend.random(0))
    heads = [] if len(args) > 1 else [backend.put(np.ones(SHAPE, "float32"))]

    def forward() -> None:
        bound.forward(is_train=True)
        backend.synchronize()

    def both() -> None:
        bound.forward(is_train=True)
        bound.backward(heads)
        backend.synchronize()

    return forward, both


def microseconds(call: Callable[[], None]) -> float:
    """The median of a call."""
    spans = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        spans.append(time.perf_counter() - begun)
    return float(np.median(spans) * 1e6)


def main() -> None:
    warnings.simplefilter("ignore")
    x = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
    label = np.zeros(SHAPE[0], "float32")
    y, dx = np.empty_like(x), np.empty_like(x)
    data = mx.sym.Variable("data")

    def both_directly() -> None:
        softmax(x, y)
        gradient(label, y, dx)

    nets = {
        "CustomOp": mx.sym.Custom(data, op_type="softmax", name="softmax"),
        "NumpyOp": NumpySoftmax()(data, name="softmax"),
        "NDArrayOp": ArraySoftmax()(data, name="softmax"),
        "CUDA": CudaSoftmax()(data, name="softmax"),
        "built in": mx.sym.SoftmaxOutput(data, name="softmax"),
    }
    direct = microseconds(lambda: softmax(x, y))
    there = microseconds(both_directly)
    print(f"softmax at {SHAPE} on the {DEVICE}, microseconds a call (median of {REPEATS})")
    print(f"{'':12}{'forward':>10}{'over':>8}{'both':>10}{'over':>8}")
    print(f"{'direct':12}{direct:10.1f}{'':8}{there:10.1f}")
    for name, net in nets.items():
        forward, both = (microseconds(bound) for bound in executor(net))
        print(f"{name:12}{forward:10.1f}{forward - direct:8.1f}{both:10.1f}{both - there:8.1f}")
    forward, both = (
        microseconds(bound) for bound in executor(mx.sym.Custom(data, op_type="copy_of_mine", name="softmax"))
    )
    direct = microseconds(lambda: np.copyto(y, x))
    print(f"a CustomOp on numpy arrays that copies: {forward - direct:.1f} over np.copyto (goal: under 100)")
    print("training the perceptron, seconds for 5 epochs, and accuracy")
    for name, make in {
        "CustomOp": lambda net: mx.sym.Custom(data=net, name="softmax", op_type="softmax"),
        "NumpyOp": lambda net: NumpySoftmax()(data=net, name="softmax"),
        "NDArrayOp": lambda net: ArraySoftmax()(data=net, name="softmax"),
        "CUDA": lambda net: CudaSoftmax()(data=net, name="softmax"),
        "built in": lambda net: mx.sym.SoftmaxOutput(data=net, name="softmax"),
    }.items():
        with mx.Context(DEVICE):
            train(make(perceptron()), 1)  # compiles
            begun = time.perf_counter()
            accuracy = train(make(perceptron()), 5)
        print(f"{name:12}{time.perf_counter() - begun:8.2f}{accuracy:8.3f}")


if __name__ == "__main__":
    main()
