"""Operators that MXNet and opbox both run: the same classes, given either module. Runs in MXNet's Python too."""

from __future__ import annotations

from typing import Any

import numpy as np


def operators(mx: Any) -> None:
    """Define and register them with `mx`."""

    class Softmax(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            x = in_data[0].asnumpy()
            y = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
            y /= y.sum(axis=1).reshape((x.shape[0], 1))
            self.assign(out_data[0], req[0], mx.nd.array(y))

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            label = in_data[1].asnumpy().ravel().astype(int)
            y = out_data[0].asnumpy()
            y[np.arange(label.shape[0]), label] -= 1.0
            self.assign(in_grad[0], req[0], mx.nd.array(y))

    @mx.operator.register("softmax")
    class SoftmaxProp(mx.operator.CustomOpProp):
        def __init__(self):
            super().__init__(need_top_grad=False)

        def list_arguments(self):
            return ["data", "label"]

        def infer_shape(self, in_shape):
            return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

        def create_operator(self, ctx, shapes, dtypes):
            return Softmax()

    class Norm(mx.operator.CustomOp):
        """Two outputs, two states, one learnt input; on NDArrays."""

        def __init__(self, momentum):
            super().__init__()
            self.momentum = momentum

        def forward(self, is_train, req, in_data, out_data, aux):
            x, gain = in_data
            mean = mx.nd.mean(x, axis=0)
            if is_train:
                aux[0][:] = aux[0] * self.momentum + mean * (1 - self.momentum)
                aux[1][:] += 1
            self.centred = mx.nd.broadcast_sub(x, mean.reshape((1, -1)))
            self.assign(out_data[0], req[0], mx.nd.broadcast_mul(self.centred, gain.reshape((1, -1))))
            self.assign(out_data[1], req[1], mean)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            gain = in_data[1].reshape((1, -1))
            rows = in_data[0].shape[0]
            grad = mx.nd.broadcast_mul(out_grad[0], gain)
            grad = mx.nd.broadcast_sub(grad, mx.nd.mean(grad, axis=0, keepdims=True))
            grad = mx.nd.broadcast_add(grad, out_grad[1].reshape((1, -1)) / rows)
            self.assign(in_grad[0], req[0], grad)
            self.assign(in_grad[1], req[1], mx.nd.sum(out_grad[0] * self.centred, axis=0))

    @mx.operator.register("norm_of_mine")
    class NormProp(mx.operator.CustomOpProp):
        def __init__(self, momentum="0.9"):
            super().__init__(need_top_grad=True)
            self.momentum = float(momentum)

        def list_arguments(self):
            return ["data", "gain"]

        def list_outputs(self):
            return ["output", "mean"]

        def list_auxiliary_states(self):
            return ["moving", "count"]

        def infer_shape(self, in_shape):
            width = (in_shape[0][1],)
            return [in_shape[0], width], [in_shape[0], width], [width, (1,)]

        def create_operator(self, ctx, shapes, dtypes):
            return Norm(self.momentum)

    class Triple(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 3)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0] * 3)

    @mx.operator.register("triple_of_mine")
    class TripleProp(mx.operator.CustomOpProp):
        """Backward declares that it reads the gradient alone."""

        def declare_backward_dependency(self, out_grad, in_data, out_data):
            return [out_grad[0]]

        def create_operator(self, ctx, shapes, dtypes):
            return Triple()


def network(mx: Any, name: str) -> Any:
    """A graph of them. One at a time: MXNet notes what backward reads of the last operator only, for all of them."""
    data = mx.sym.Variable("data")
    if name == "softmax":
        return mx.sym.Custom(data, op_type="softmax", name="softmax")
    if name == "norm":
        return mx.sym.Custom(data, op_type="norm_of_mine", momentum=0.5, name="norm")
    if name == "first output":
        return mx.sym.Custom(data, op_type="norm_of_mine", name="norm")[0] * 2
    if name == "in a network":
        hidden = mx.sym.FullyConnected(mx.sym.Custom(data, op_type="norm_of_mine")[0], num_hidden=4, name="fc")
        return mx.sym.Custom(mx.sym.tanh(hidden), op_type="softmax", name="softmax")
    return mx.sym.Custom(mx.sym.Custom(data, op_type="triple_of_mine") + data, op_type="triple_of_mine")


def run(mx: Any, name: str, req: str, dtype: str = "float32") -> dict[str, Any]:
    """Two training steps of a network: lists, shapes, outputs, gradients, states."""
    with mx.name.NameManager():
        net = network(mx, name)
    random = np.random.RandomState(3)
    shapes = net.infer_shape(data=(6, 5))
    # MXNet's default infer_type leaves a type unknown that is not given.
    types = dict.fromkeys(net.list_arguments(), dtype)
    executor = net.simple_bind(mx.cpu(), data=(6, 5), grad_req=req, type_dict=types)
    for key in sorted(executor.arg_dict):
        array = executor.arg_dict[key]
        values = random.randint(0, 4, array.shape) if "label" in key else random.uniform(-1, 1, array.shape)
        array[:] = values.astype(array.dtype)
    for _ in range(2):
        outputs = executor.forward(is_train=True)
        executor.backward([mx.nd.array(random.uniform(-1, 1, o.shape), dtype=o.dtype) for o in outputs])
    mx.nd.waitall()  # before the next is composed: see `network`
    arrays = {f"out:{i}": o.asnumpy() for i, o in enumerate(outputs)}
    arrays.update({f"grad:{k}": g.asnumpy() for k, g in executor.grad_dict.items() if g is not None})
    arrays.update({f"aux:{k}": a.asnumpy() for k, a in executor.aux_dict.items()})
    return {
        "lists": [net.list_arguments(), net.list_outputs(), net.list_auxiliary_states()],
        "shapes": [[tuple(shape) for shape in side] for side in shapes],
        "json": net.tojson(),
        "arrays": arrays,
    }
