"""Pairs of features by factors, in the manner of MXNet's example/sparse/factorization_machine, with dense arrays."""

import json

import mxnet as mx
import numpy as np

FEATURES, FACTORS, BATCH = 14, 4, 16


@mx.init.register
class SignedRows(mx.init.Initializer):
    """Rows of alternating sign, as an initializer that programs register."""

    def __init__(self, scale=0.1):
        super(SignedRows, self).__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name, arr):
        rows = np.where(np.arange(arr.shape[0]) % 2, -1.0, 1.0).reshape(-1, 1)
        arr[:] = self.scale * rows * (1 + np.arange(np.prod(arr.shape)).reshape(arr.shape) % 3)


@mx.metric.register
@mx.metric.alias("logloss")
class LogLoss(mx.metric.EvalMetric):
    def __init__(self, eps=1e-7, name="log-loss", **kwargs):
        super(LogLoss, self).__init__(name, eps=eps, **kwargs)
        self.eps = eps

    def update(self, labels, preds):
        for label, pred in zip(labels, preds):
            y, p = label.asnumpy().ravel(), pred.asnumpy().ravel().clip(self.eps, 1 - self.eps)
            self.sum_metric += float(-(y * np.log(p) + (1 - y) * np.log(1 - p)).sum())
            self.num_inst += len(y)


@mx.optimizer.register
class Ftrl1(mx.optimizer.Optimizer):
    """Follow the regularised leader, by arrays of the program."""

    def __init__(self, lamda1=0.01, beta=1.0, **kwargs):
        super(Ftrl1, self).__init__(**kwargs)
        self.lamda1, self.beta = lamda1, beta

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape, weight.context), mx.nd.zeros(weight.shape, weight.context)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        lr = self._get_lr(index)
        z, n = state
        grad = grad * self.rescale_grad
        sigma = (mx.nd.sqrt(n + grad * grad) - mx.nd.sqrt(n)) / lr
        z += grad - sigma * weight
        n += grad * grad
        shrunk = mx.nd.sign(z) * mx.nd.maximum(mx.nd.abs(z) - self.lamda1, 0)
        weight[:] = -shrunk * lr / (self.beta + mx.nd.sqrt(n))


def machine():
    x = mx.symbol.Variable("data")
    v = mx.symbol.Variable("v", shape=(FEATURES, FACTORS), init=SignedRows(0.05))
    w = mx.symbol.var("w", shape=(FEATURES, 1), init=mx.initializer.Constant(0.02))
    bias = mx.symbol.var("w_bias", shape=(1,), init=mx.init.Zero(), wd_mult=0.0)
    linear = mx.symbol.broadcast_add(mx.symbol.dot(x, w), bias)
    squares = mx.symbol.sum(mx.symbol.square(mx.symbol.dot(x, v)), axis=1, keepdims=True)
    own = mx.symbol.dot(mx.symbol.square(x), mx.symbol.sum(mx.symbol.square(v), axis=1, keepdims=True))
    model = linear + 0.5 * (squares - own)
    return mx.symbol.LogisticRegressionOutput(data=model, label=mx.symbol.Variable("softmax_label"), name="fm")


rng = np.random.RandomState(35)
x = (rng.rand(5 * BATCH, FEATURES) < 0.3) * rng.rand(5 * BATCH, FEATURES)
y = ((x[:, 0] * x[:, 1] + x[:, 2]) > 0.05).astype("float32").reshape(-1, 1)
net = machine()
out = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, FEATURES)),
    "attributes": {name: net.attr_dict()[name]["__init__"] for name in ("w", "w_bias")},
    "dumped": SignedRows(0.05).dumps(),
}
for optimizer, arguments in (
    ("ftrl1", {"learning_rate": 0.5, "lamda1": 0.002}),
    ("ftrl", {"learning_rate": 0.5, "lamda1": 0.002}),
    ("adam", {"learning_rate": 0.05, "clip_gradient": 0.5}),
):
    train = mx.io.NDArrayIter(x.astype("float32"), y, BATCH)
    module = mx.mod.Module(net, context=mx.cpu())
    module.bind(train.provide_data, train.provide_label)
    module.init_params()
    module.init_optimizer(optimizer=optimizer, optimizer_params=dict(arguments, rescale_grad=1.0 / BATCH))
    losses = []
    for batch in train:
        module.forward_backward(batch)
        metric = mx.metric.create("logloss")
        module.update_metric(metric, batch.label)
        losses.append(float(metric.get()[1]))
        module.update()
    args, _ = module.get_params()
    out[optimizer] = [losses, args["v"].asnumpy()[:3].tolist(), args["w"].asnumpy().ravel().tolist()]
print(json.dumps(out))
