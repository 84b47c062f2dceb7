"""A batch split over contexts and a key-value store, in the manner of MXNet's tutorials on several devices."""

import json

import mxnet as mx
import numpy as np

BATCH = 12


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def network():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), name="fc1", num_hidden=8)
    net = mx.sym.Activation(net, name="tanh1", act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, name="fc2", num_hidden=3), name="softmax")


def train(contexts, kvstore):
    seen = []
    module = mx.mod.Module(network(), context=contexts)
    module.fit(
        mx.io.NDArrayIter(x, y, BATCH),
        eval_metric="ce",
        kvstore=kvstore,
        initializer=ByShape(),
        optimizer_params={"learning_rate": 0.3, "momentum": 0.9},
        num_epoch=2,
        batch_end_callback=lambda param: seen.append(float(param.eval_metric.get()[1])),
    )
    return seen, {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(module.get_params()[0].items())}


rng = np.random.RandomState(40)
x = rng.randn(5 * BATCH, 6).astype("float32")
y = x[:, :3].argmax(axis=1).astype("float32")
both = [mx.cpu(0), mx.cpu(1)]
out = {
    "one": train(mx.cpu(), "local"),
    "local": train(both, "local"),
    "device": train(both, mx.kv.create("device")),
    "none": train(both, None),
}

# The store by itself: what is pushed is added up, or an updater's affair.
store = mx.kv.create("local")
store.init(3, mx.nd.ones((2, 3)))
pulled = mx.nd.zeros((2, 3))
store.pull(3, out=pulled)
values = [pulled.asnumpy().sum()]
store.push(3, [mx.nd.ones((2, 3), context) * 2 for context in both])
store.pull(3, out=pulled)
values.append(pulled.asnumpy().sum())


def update(key, gradient, stored):
    stored += gradient * 2


store._set_updater(update)
store.push(3, mx.nd.ones((2, 3)))
store.pull(3, out=pulled)
values.append(pulled.asnumpy().sum())
out["store"] = [[float(value) for value in values], store.type, store.rank, store.num_workers]

# Layers on two contexts.
with mx.AttrScope(ctx_group="front"):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), name="fc1", num_hidden=8)
    net = mx.sym.Activation(net, act_type="tanh")
with mx.AttrScope(ctx_group="back"):
    net = mx.sym.FullyConnected(net, name="fc2", num_hidden=3)
    net = mx.sym.SoftmaxOutput(net, name="softmax")
executor = net.simple_bind(mx.cpu(0), group2ctx={"front": mx.cpu(0), "back": mx.cpu(1)}, data=(BATCH, 6))
names = [name for name in net.list_arguments() if name not in ("data", "softmax_label")]
for name in names:
    ByShape()(mx.init.InitDesc(name), executor.arg_dict[name])
losses = []
for step in range(5):
    part = slice(step * BATCH, (step + 1) * BATCH)
    executor.arg_dict["data"][:] = x[part]
    executor.arg_dict["softmax_label"][:] = y[part]
    predicted = executor.forward(is_train=True)[0].asnumpy()
    losses.append(float(-np.log(predicted[np.arange(BATCH), y[part].astype(int)]).mean()))
    executor.backward()
    for name in names:
        executor.arg_dict[name][:] -= 0.3 / BATCH * executor.grad_dict[name]
out["groups"] = [losses, [str(executor.arg_dict[name].context) for name in names], str(executor.outputs[0].context)]
print(json.dumps(out))
