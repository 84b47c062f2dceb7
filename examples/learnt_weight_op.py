"""A CustomOp with a weight of its own, which a Module learns: y = data * weight, one weight a feature.

python examples/learnt_weight_op.py
"""

import numpy as np

import opbox as mx


class Scale(mx.operator.CustomOp):
    """The weight is an input like any other: backward gives its gradient."""

    def forward(self, is_train, req, in_data, out_data, aux):
        data, weight = in_data
        self.assign(out_data[0], req[0], data * weight.reshape((1, -1)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        data, weight = in_data
        self.assign(in_grad[0], req[0], out_grad[0] * weight.reshape((1, -1)))
        self.assign(in_grad[1], req[1], mx.nd.sum(out_grad[0] * data, axis=0))


@mx.operator.register("scale")
class ScaleProp(mx.operator.CustomOpProp):
    """infer_shape tells the weight's shape, so nobody else has to."""

    def list_arguments(self):
        return ["data", "weight"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][1],)], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return Scale()


if __name__ == "__main__":
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="scale", name="scale")
    net = mx.sym.LinearRegressionOutput(net, mx.sym.Variable("softmax_label"), name="out")
    rng = np.random.default_rng(0)
    mx.random.seed(0)
    wanted = np.array([2.0, -1.0, 0.5, 3.0])
    x = rng.normal(size=(500, 4)).astype("float32")
    train = mx.io.NDArrayIter(x, (x * wanted).astype("float32"), 50, shuffle=True)
    mod = mx.mod.Module(net)
    mod.fit(
        train,
        num_epoch=20,
        eval_metric="mse",
        optimizer_params={"learning_rate": 0.5},
        initializer=mx.init.Uniform(0.1),
    )
    learnt = mod.get_params()[0]["scale_weight"].asnumpy()
    print("learnt:", learnt.round(3))
    assert np.allclose(learnt, wanted, atol=0.02)
