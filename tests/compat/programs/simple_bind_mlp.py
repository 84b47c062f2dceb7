"""A network bound and trained by hand, in the manner of the first tutorials: bind, simple_bind, an updater."""

import json

import mxnet as mx
import numpy as np


def network():
    net = mx.symbol.Variable("data")
    net = mx.symbol.FullyConnected(data=net, name="fc1", num_hidden=16)
    net = mx.symbol.Activation(data=net, name="relu1", act_type="relu")
    net = mx.symbol.FullyConnected(data=net, name="fc2", num_hidden=4)
    return mx.symbol.SoftmaxOutput(data=net, name="out")


def start(name, shape):
    return np.random.RandomState(len(name) + shape[0]).uniform(-0.4, 0.4, shape)


def cross_entropy(label, pred):
    return float(-np.log(np.maximum(1e-10, pred[np.arange(len(label)), label.astype(int)])).mean())


rng = np.random.RandomState(0)
centers = rng.randn(4, 6)
y = rng.randint(0, 4, 100).astype("float32")
x = (centers[y.astype(int)] + 0.5 * rng.randn(100, 6)).astype("float32")
net = network()
batch = 20
out = {"arguments": net.list_arguments(), "shapes": net.infer_shape(data=(batch, 6))}

# simple_bind, and gradients added to the weights by the program itself.
executor = net.simple_bind(ctx=mx.cpu(), data=(batch, 6), grad_req="write")
args, grads = executor.arg_dict, executor.grad_dict
for name in args:
    if name not in ("data", "out_label"):
        args[name][:] = start(name, args[name].shape)


def sgd(weight, grad, learning_rate=0.2, grad_norm=batch):
    weight[:] -= learning_rate * grad / grad_norm


losses = []
for step in range(5):
    args["data"][:] = x[step * batch : (step + 1) * batch]
    args["out_label"][:] = y[step * batch : (step + 1) * batch]
    executor.forward(is_train=True)
    losses.append(cross_entropy(y[step * batch : (step + 1) * batch], executor.outputs[0].asnumpy()))
    executor.backward()
    for name in net.list_arguments():
        if name not in ("data", "out_label"):
            sgd(args[name], grads[name])
out["simple_bind"] = {
    "losses": losses,
    "gradients": {name: float(np.abs(grad.asnumpy()).sum()) for name, grad in grads.items() if grad is not None},
    "weights": executor.arg_arrays[1].asnumpy()[:2].tolist(),
}

# bind, gradients that add up over two batches, and mx.optimizer's updater.
shapes = dict(zip(net.list_arguments(), out["shapes"][0]))
weights = {name: mx.nd.array(start(name, shape)) for name, shape in shapes.items() if name not in ("data", "out_label")}
gradients = {name: mx.nd.zeros(value.shape) for name, value in weights.items()}
places = {"data": mx.nd.zeros((batch, 6)), "out_label": mx.nd.zeros((batch,))}
bound = net.bind(
    mx.cpu(),
    args=dict(weights, **places),
    args_grad=gradients,
    grad_req={name: "add" if name in weights else "null" for name in net.list_arguments()},
)
optimizer = mx.optimizer.create("adam", learning_rate=0.05, rescale_grad=1.0 / (2 * batch), wd=0.001)
updater = mx.optimizer.get_updater(optimizer)
losses = []
for step in range(6):
    part = slice(step % 5 * batch, (step % 5 + 1) * batch)
    places["data"][:] = x[part]
    places["out_label"][:] = y[part]
    predicted = bound.forward(is_train=True)[0]
    losses.append(cross_entropy(y[part], predicted.asnumpy()))
    bound.backward()
    if step % 2:
        for index, name in enumerate(sorted(weights)):
            updater(index, gradients[name], weights[name])
            gradients[name][:] = 0
out["bind"] = {
    "losses": losses,
    "weights": {name: float(value.asnumpy().sum()) for name, value in sorted(weights.items())},
    "same": bool((bound.arg_dict["fc1_weight"].asnumpy() == weights["fc1_weight"].asnumpy()).all()),
}

# A smaller batch shares the parameters.
small = bound.reshape(data=(5, 6), out_label=(5,))
small.arg_dict["data"][:] = x[:5]
small.forward(is_train=False)
out["reshaped"] = small.outputs[0].asnumpy().tolist()
print(json.dumps(out))
