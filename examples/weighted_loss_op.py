"""A weighted loss as a CustomOp: logistic regression in which every observation has a weight of its own.

python examples/weighted_loss_op.py

out = 1 / (1 + exp(-data));    gradient of data = weight * (out - label)
"""

import numpy as np

import opbox as mx


class WeightedLogistic(mx.operator.CustomOp):
    """Three inputs, of which one gets a gradient."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.sigmoid(in_data[0]))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        _, label, weight = in_data
        grad = (out_data[0] - label.reshape((-1, 1))) * weight.reshape((-1, 1))
        self.assign(in_grad[0], req[0], grad)
        self.assign(in_grad[1], req[1], mx.nd.zeros(label.shape))
        self.assign(in_grad[2], req[2], mx.nd.zeros(weight.shape))


@mx.operator.register("weighted_logistic")
class WeightedLogisticProp(mx.operator.CustomOpProp):
    """A loss: it needs no gradient from above."""

    # What `opbox lint` compares backward with.
    lint_cases = [
        {
            "data": (4, 1),
            "label": [0, 1, 1, 0],
            "weight": [1, 2, 0.5, 3],
            "loss": lambda data, label, weight, output: (
                -(weight * np.log(np.where(label > 0, output[:, 0], 1 - output[:, 0]))).sum()
            ),
        }
    ]

    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label", "weight"]

    def infer_shape(self, in_shape):
        rows = (in_shape[0][0],)
        return [in_shape[0], rows, rows], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return WeightedLogistic()


def fit(weights):
    """The share of positive predictions, for observations that are the same but for their labels."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc")
    net = mx.sym.Custom(net, mx.sym.Variable("label"), mx.sym.Variable("weight"), op_type="weighted_logistic")
    labels = np.tile([0.0, 1.0], 50).astype("float32")
    data = {"data": np.ones((100, 1), "float32"), "weight": np.where(labels > 0, weights[1], weights[0])}
    mod = mx.mod.Module(net, data_names=("data", "weight"), label_names=("label",))
    train = mx.io.NDArrayIter(data, {"label": labels}, 20)
    mod.fit(
        train,
        num_epoch=60,
        eval_metric=mx.metric.Loss(),
        optimizer_params={"learning_rate": 0.5},
        initializer=mx.init.Zero(),
    )
    return float(mod.predict(train).asnumpy().mean())


if __name__ == "__main__":
    for low, high in ((1, 1), (1, 3), (4, 1)):
        share = fit((low, high))
        print(f"weights {low} and {high}: predicted {share:.3f}, expected {high / (low + high):.3f}")
        assert abs(share - high / (low + high)) < 0.02
