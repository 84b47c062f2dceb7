"""A softmax loss as an NDArrayOp, in the manner of MXNet's example/numpy-ops/ndarray_softmax.py."""

import json

import mxnet as mx
import numpy as np


class NDArraySoftmax(mx.operator.NDArrayOp):
    def __init__(self):
        super(NDArraySoftmax, self).__init__(False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]]

    def forward(self, in_data, out_data):
        x = in_data[0]
        y = mx.nd.exp(mx.nd.broadcast_sub(x, mx.nd.max(x, axis=1, keepdims=True)))
        out_data[0][:] = mx.nd.broadcast_div(y, mx.nd.sum(y, axis=1, keepdims=True))

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = out_data[0] - mx.nd.one_hot(in_data[1], 10)


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0]).uniform(-0.1, 0.1, arr.shape)


rng = np.random.RandomState(1)
patterns = rng.rand(10, 64)
labels = rng.randint(0, 10, 500)
images = (patterns[labels] + 0.3 * rng.randn(500, 64)).astype("float32")
train = mx.io.NDArrayIter(images[:400], labels[:400], 100)
val = mx.io.NDArrayIter(images[400:], labels[400:], 100)

data = mx.symbol.Variable("data")
fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=128)
act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=64)
act2 = mx.symbol.Activation(data=fc2, name="relu2", act_type="relu")
fc3 = mx.symbol.FullyConnected(data=act2, name="fc3", num_hidden=10)
mysoftmax = NDArraySoftmax()
mlp = mysoftmax(data=fc3, name="softmax")

losses, scores = [], []


def note_loss(param):
    losses.append([param.nbatch, float(param.eval_metric.get()[1])])


model = mx.model.FeedForward(
    ctx=mx.context.cpu(), symbol=mlp, num_epoch=2, learning_rate=0.1, momentum=0.9, wd=0.00001, initializer=ByShape()
)
model.fit(
    X=train,
    eval_data=val,
    eval_metric="ce",
    batch_end_callback=note_loss,
    eval_end_callback=lambda param: scores.append(float(param.eval_metric.get()[1])),
)
out = {
    "arguments": mlp.list_arguments(),
    "outputs": mlp.list_outputs(),
    "shapes": mlp.infer_shape(data=(100, 64)),
    "losses": losses,
    "scores": scores,
}
print(json.dumps(out))
