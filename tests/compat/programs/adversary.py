"""Examples that fool a network by the gradients of its inputs, in the manner of MXNet's example/adversary."""

import json

import mxnet as mx
import numpy as np

BATCH = 20


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.2, 0.2, arr.shape)


def network():
    data = mx.symbol.Variable("data")
    net = mx.sym.Convolution(data=data, kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv1")
    net = mx.sym.Activation(data=net, act_type="tanh")
    net = mx.sym.Pooling(data=net, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    net = mx.sym.FullyConnected(data=mx.sym.Flatten(net), num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(data=net, name="softmax")


def accuracy(pred, label):
    return float((pred.asnumpy().argmax(axis=1) == label).mean())


rng = np.random.RandomState(15)
prototypes = rng.rand(4, 1, 8, 8)
y = rng.randint(0, 4, 5 * BATCH).astype("float32")
x = (prototypes[y.astype(int)] + 0.1 * rng.randn(5 * BATCH, 1, 8, 8)).astype("float32")
net = network()
executor = net.simple_bind(ctx=mx.cpu(), data=(BATCH, 1, 8, 8), grad_req=dict.fromkeys(net.list_arguments(), "write"))
initializer = ByShape()
params = {}
for name, value in executor.arg_dict.items():
    if name not in ("data", "softmax_label"):
        initializer(mx.init.InitDesc(name), value)
        params[name] = value
losses = []
for epoch in range(3):
    for begin in range(0, len(x), BATCH):
        part = slice(begin, begin + BATCH)
        executor.forward(is_train=True, data=mx.nd.array(x[part]), softmax_label=mx.nd.array(y[part]))
        executor.backward()
        picked = mx.nd.pick(executor.outputs[0], mx.nd.array(y[part]))
        losses.append(float(-mx.nd.log(picked).mean().asscalar()))
        for name, value in params.items():
            value -= 0.02 * executor.grad_dict[name]
out = {"losses": losses, "outputs": net.list_outputs(), "arguments": net.list_arguments(), "fooled": {}}

# The fast gradient sign of Goodfellow, the plain gradient, and both after several smaller steps.
clean, label = mx.nd.array(x[:BATCH]), mx.nd.array(y[:BATCH])
executor.forward(is_train=True, data=clean, softmax_label=label)
executor.backward()
gradient = executor.grad_dict["data"].copy()
out["gradient"] = gradient.asnumpy()[0, 0, :2].tolist()
out["clean"] = accuracy(executor.outputs[0], y[:BATCH])
length = mx.nd.sqrt(mx.nd.sum(gradient**2, axis=(1, 2, 3), keepdims=True))
for name, step in (("sign", 0.3 * mx.nd.sign(gradient)), ("gradient", mx.nd.broadcast_div(2 * gradient, length))):
    predicted = executor.forward(is_train=False, data=clean + step)[0]
    picked = mx.nd.pick(predicted, label).asnumpy()
    out["fooled"][name] = [accuracy(predicted, y[:BATCH]), float(-np.log(picked).mean())]
iterated = clean.copy()
for _ in range(3):
    executor.forward(is_train=True, data=iterated)
    executor.backward()
    iterated = mx.nd.clip(iterated + 0.1 * mx.nd.sign(executor.grad_dict["data"]), 0, 1.5)
predicted = executor.forward(is_train=False, data=iterated)[0]
out["fooled"]["iterated"] = [accuracy(predicted, y[:BATCH]), float(iterated.asnumpy().mean())]
print(json.dumps(out))
