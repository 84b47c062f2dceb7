"""LeNet and an MLP by Module.fit, in the manner of MXNet's example/image-classification/train_mnist.py."""

import json
import logging

import mxnet as mx
import numpy as np

logging.getLogger().setLevel(logging.ERROR)


class ByShape(mx.init.Initializer):
    """Weights that a parameter's name and shape decide."""

    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.2, 0.2, arr.shape)


def lenet():
    data = mx.symbol.Variable("data")
    conv1 = mx.symbol.Convolution(data=data, kernel=(5, 5), num_filter=4, name="conv1")
    tanh1 = mx.symbol.Activation(data=conv1, act_type="tanh")
    pool1 = mx.symbol.Pooling(data=tanh1, pool_type="max", kernel=(2, 2), stride=(2, 2))
    conv2 = mx.symbol.Convolution(data=pool1, kernel=(3, 3), num_filter=6, name="conv2")
    tanh2 = mx.symbol.Activation(data=conv2, act_type="tanh")
    pool2 = mx.symbol.Pooling(data=tanh2, pool_type="max", kernel=(2, 2), stride=(2, 2))
    flatten = mx.symbol.Flatten(data=pool2)
    fc1 = mx.symbol.FullyConnected(data=flatten, num_hidden=20, name="fc1")
    tanh3 = mx.symbol.Activation(data=fc1, act_type="tanh")
    fc2 = mx.symbol.FullyConnected(data=tanh3, num_hidden=10, name="fc2")
    return mx.symbol.SoftmaxOutput(data=fc2, name="softmax")


def mlp():
    data = mx.sym.Flatten(data=mx.sym.Variable("data"))
    fc1 = mx.sym.FullyConnected(data=data, name="fc1", num_hidden=32)
    act1 = mx.sym.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.sym.FullyConnected(data=act1, name="fc2", num_hidden=10)
    return mx.sym.SoftmaxOutput(data=fc2, name="softmax")


def sums(params):
    return {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(params.items())}


rng = np.random.RandomState(7)
digits = rng.rand(10, 1, 16, 16)
labels = rng.randint(0, 10, 160)
images = (digits[labels] + 0.2 * rng.randn(160, 1, 16, 16)).astype("float32")
out = {}
for name, network in (("lenet", lenet()), ("mlp", mlp())):
    train = mx.io.NDArrayIter(images[:120], labels[:120], 24, shuffle=False)
    val = mx.io.NDArrayIter(images[120:], labels[120:], 20)
    seen, rates = [], []

    def each_batch(param):
        seen.append([param.epoch, param.nbatch, *(float(value) for _, value in param.eval_metric.get_name_value())])
        rates.append(param.locals["self"]._optimizer._get_lr(0))

    schedule = mx.lr_scheduler.MultiFactorScheduler(step=[3, 6], factor=0.5)
    arguments = {
        "train_data": train,
        "eval_data": val,
        "eval_metric": ["accuracy", mx.metric.CrossEntropy(), mx.metric.TopKAccuracy(top_k=3)],
        "optimizer": "sgd",
        "optimizer_params": (("learning_rate", 0.2), ("momentum", 0.9), ("wd", 1e-4), ("lr_scheduler", schedule)),
        "batch_end_callback": [each_batch, mx.callback.Speedometer(24, 2)],
        "epoch_end_callback": mx.callback.do_checkpoint(name),
        "kvstore": "local",
    }
    model = mx.mod.Module(symbol=network, context=mx.cpu())
    model.fit(initializer=ByShape(), num_epoch=2, **arguments)
    loaded, arg_params, aux_params = mx.model.load_checkpoint(name, 2)
    saved = sums(arg_params)
    resumed = mx.mod.Module(symbol=loaded, context=mx.cpu())
    arguments["optimizer_params"] = {"learning_rate": 0.05}
    resumed.fit(arg_params=arg_params, aux_params=aux_params, begin_epoch=2, num_epoch=3, **arguments)
    out[name] = {
        "arguments": loaded.list_arguments(),
        "shapes": loaded.infer_shape(data=(24, 1, 16, 16)),
        "seen": seen,
        "rates": rates,
        "saved": saved,
        "resumed": sums(resumed.get_params()[0]),
        "score": [[key, float(value)] for key, value in resumed.score(val, ["acc", "ce"])],
    }
print(json.dumps(out))
