"""Every manner of model.FeedForward, as MXNet's first tutorials use it: arrays, iterators, files, callbacks."""

import json
import warnings

import mxnet as mx
import numpy as np

warnings.simplefilter("ignore", DeprecationWarning)


class ByShape(mx.init.Initializer):
    """Weights that a parameter's name and shape decide."""

    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def network():
    data = mx.sym.Variable("data")
    hidden = mx.sym.FullyConnected(data, num_hidden=8, name="fc1")
    hidden = mx.sym.Activation(mx.sym.BatchNorm(hidden, name="bn"), act_type="relu", name="relu1")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def sums(params):
    return {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(params.items())}


rng = np.random.RandomState(3)
x = rng.randn(130, 6).astype("float32")
y = x[:, :3].argmax(1).astype("float32")
out = {"batches": [], "epochs": [], "scored": []}

np.random.seed(5)
model = mx.model.FeedForward(
    network(),
    mx.cpu(),
    num_epoch=3,
    numpy_batch_size=32,
    initializer=ByShape(),
    learning_rate=0.1,
    momentum=0.9,
    wd=1e-3,
)
model.fit(
    x,
    y,
    eval_data=(x[:64].tolist(), y[:64].tolist()),
    batch_end_callback=lambda p: out["batches"].append([p.epoch, p.nbatch, float(p.eval_metric.get()[1])]),
    epoch_end_callback=[lambda epoch, symbol, args, states: out["epochs"].append([epoch, sums(args), sums(states)])],
    eval_end_callback=lambda p: out["scored"].append([p.epoch, p.nbatch, float(p.eval_metric.get()[1])]),
)
iterator = mx.io.NDArrayIter(x, y, 50)
predicted, data, label = model.predict(iterator, return_data=True)
out["predicted"] = predicted[:5].tolist()
out["shapes"] = [list(predicted.shape), list(data.shape), list(label.shape)]
out["scores"] = [float(model.score(iterator)), float(model.score(iterator, "acc", num_batch=1))]

model.save("model")
again = mx.model.FeedForward.load("model", 3, num_epoch=5, epoch_size=2, learning_rate=0.05)
steps = []
iterator.reset()
again.fit(iterator, batch_end_callback=lambda p: steps.append([p.epoch, p.nbatch]))
out["epoch_size"] = [steps, again.predict(x)[:5].tolist()]

created = mx.model.FeedForward.create(
    network(),
    x,
    y,
    num_epoch=1,
    initializer=ByShape(),
    optimizer=mx.optimizer.SGD(learning_rate=0.2, rescale_grad=1 / 128),
)
out["created"] = created.predict(x, num_batch=1)[:5].tolist()
print(json.dumps(out))
