"""A CustomOp with an auxiliary state: data is centred by a moving average, which training updates.

python examples/moving_average_op.py

training:   mean = momentum * mean + (1 - momentum) * average of the batch;    out = data - average of the batch
otherwise:  out = data - mean
"""

from collections import namedtuple

import numpy as np

import opbox as mx


class Centre(mx.operator.CustomOp):
    """The computation; `aux[0]` is the moving average."""

    def __init__(self, momentum):
        super().__init__()
        self.momentum = momentum

    def forward(self, is_train, req, in_data, out_data, aux):
        mean = aux[0]
        if is_train:
            batch_mean = mx.nd.mean(in_data[0], axis=0)
            mean[:] = mean * self.momentum + batch_mean * (1 - self.momentum)
            mean = batch_mean
        self.assign(out_data[0], req[0], in_data[0] - mean.reshape((1, -1)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        grad = out_grad[0]
        self.assign(in_grad[0], req[0], grad - mx.nd.mean(grad, axis=0).reshape((1, -1)))


@mx.operator.register("centre")
class CentreProp(mx.operator.CustomOpProp):
    """`momentum` comes as a string, as everything given to mx.sym.Custom; the annotation makes a number of it."""

    def __init__(self, momentum: float = 0.9):
        super().__init__(need_top_grad=True)
        self.momentum = momentum

    def list_auxiliary_states(self):
        return ["moving_mean"]

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], [(in_shape[0][1],)]

    def create_operator(self, ctx, shapes, dtypes):
        return Centre(self.momentum)


if __name__ == "__main__":
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="centre", momentum=0.5, name="centre")
    print(net.list_arguments(), net.list_auxiliary_states())
    exe = mx.mod.Module(net, label_names=None)
    exe.bind(data_shapes=[("data", (64, 3))])
    exe.init_params()
    Batch = namedtuple("Batch", ["data"])
    wanted = np.array([1.0, -2.0, 0.5])
    rng = np.random.default_rng(0)
    for _ in range(40):
        exe.forward(Batch([mx.nd.array(rng.normal(wanted, 0.1, (64, 3)))]), is_train=True)
    mean = exe.get_params()[1]["centre_moving_mean"].asnumpy()
    print("moving average:", mean.round(2))
    assert np.allclose(mean, wanted, atol=0.05)
    exe.forward(Batch([mx.nd.array(np.tile(wanted, (64, 1)))]), is_train=False)
    assert np.allclose(exe.get_outputs()[0].asnumpy(), 0, atol=0.05)
