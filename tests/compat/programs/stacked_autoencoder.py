"""A stacked autoencoder, layer by layer and then as a whole, in the manner of MXNet's example/autoencoder."""

import json

import mxnet as mx
import numpy as np

SIZES = [12, 8, 3]


def layer_network(index):
    """One layer that encodes and decodes again."""
    data = mx.symbol.Variable("data")
    net = mx.symbol.FullyConnected(data=data, name=f"encoder_{index}", num_hidden=SIZES[index + 1])
    if index < len(SIZES) - 2:
        net = mx.symbol.Activation(data=net, act_type="relu")
    net = mx.symbol.FullyConnected(data=net, name=f"decoder_{index}", num_hidden=SIZES[index])
    return mx.symbol.LinearRegressionOutput(data=net, label=mx.symbol.Variable("label"), name="out")


def encoder():
    net = mx.symbol.Variable("data")
    for index, size in enumerate(SIZES[1:]):
        net = mx.symbol.FullyConnected(data=net, name=f"encoder_{index}", num_hidden=size)
        if index < len(SIZES) - 2:
            net = mx.symbol.Activation(data=net, act_type="relu", name=f"encoder_act_{index}")
    return net


def whole_network():
    net = encoder()
    for index in reversed(range(len(SIZES) - 1)):
        net = mx.symbol.FullyConnected(data=net, name=f"decoder_{index}", num_hidden=SIZES[index])
        if index:
            net = mx.symbol.Activation(data=net, act_type="relu", name=f"decoder_act_{index}")
    return mx.symbol.LinearRegressionOutput(data=net, label=mx.symbol.Variable("label"), name="out")


def train(net, args, auxiliary_data, rate, steps):
    """Train the arguments of a network in place; the mean square error of every step."""
    shape = auxiliary_data.shape
    shapes, _, _ = net.infer_shape(data=shape, label=shape)
    missing = [name for name in net.list_arguments() if name not in args and name not in ("data", "label")]
    sizes = dict(zip(net.list_arguments(), shapes))
    for name in missing:
        draw = np.random.RandomState(len(name) + sizes[name][0])
        args[name] = mx.nd.array(
            draw.uniform(-0.5, 0.5, sizes[name]) if name.endswith("weight") else np.zeros(sizes[name])
        )
    names = [name for name in net.list_arguments() if name not in ("data", "label")]
    grads = {name: mx.nd.zeros(sizes[name]) for name in names}
    data = mx.nd.array(auxiliary_data)
    bound = {name: args[name] for name in names}
    executor = net.bind(mx.cpu(), dict(bound, data=data, label=data), grads, "write")
    optimizer = mx.optimizer.SGD(learning_rate=rate, momentum=0.9, rescale_grad=1.0 / shape[0])
    # Biases learn twice as fast.
    optimizer.set_lr_mult({index: 2.0 for index, name in enumerate(names) if name.endswith("bias")})
    updater = mx.optimizer.get_updater(optimizer)
    losses = []
    for _ in range(steps):
        executor.forward(is_train=True)
        losses.append(float(((executor.outputs[0] - data) ** 2).mean().asscalar()))
        executor.backward()
        for index, name in enumerate(names):
            updater(index, grads[name], args[name])
    return losses, {name: float(grads[name].norm().asscalar()) for name in names}


rng = np.random.RandomState(2)
x = (rng.rand(40, 3) @ rng.randn(3, 12)).astype("float32")
args = {}
out = {"layers": []}
features = x
for index in range(len(SIZES) - 1):
    out["layers"].append(train(layer_network(index), args, features, 0.05, 5))
    encoded = layer_network(index).get_internals()[f"encoder_{index}_output"]
    if index < len(SIZES) - 2:
        encoded = mx.symbol.Activation(encoded, act_type="relu")
    own = {name: args[name] for name in encoded.list_arguments() if name != "data"}
    features = encoded.bind(mx.cpu(), dict(own, data=mx.nd.array(features))).forward()[0].asnumpy()
out["together"] = train(whole_network(), args, x, 0.02, 5)
mx.nd.save("autoencoder.params", args)
loaded = mx.nd.load("autoencoder.params")
code = encoder()
executor = code.bind(
    mx.cpu(), {name: mx.nd.array(x) if name == "data" else loaded[name] for name in code.list_arguments()}
)
out["saved"] = sorted((name, list(value.shape)) for name, value in loaded.items())
out["code"] = executor.forward()[0].asnumpy()[:4].tolist()
print(json.dumps(out))
