"""Hinge losses of SVMOutput, linear and squared, in the manner of MXNet's example/svm_mnist."""

import json

import mxnet as mx
import numpy as np


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0]).uniform(-0.2, 0.2, arr.shape)


class Hinge(mx.metric.EvalMetric):
    """The mean over a batch of what violates the margin."""

    def __init__(self):
        super(Hinge, self).__init__("hinge")

    def update(self, labels, preds):
        for label, pred in zip(labels, preds):
            sign = np.where(np.arange(pred.shape[1]) == label.asnumpy()[:, None], 1, -1)
            self.sum_metric += float(np.maximum(0, 1 - sign * pred.asnumpy()).sum())
            self.num_inst += pred.shape[0]


def network(**svm):
    data = mx.symbol.Variable("data")
    fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=24)
    act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=5)
    return mx.symbol.SVMOutput(data=fc2, name="svm", **svm)


rng = np.random.RandomState(10)
prototypes = rng.randn(5, 30)
labels = rng.randint(0, 5, 100)
x = prototypes[labels] + 0.7 * rng.randn(100, 30)
mean = x.mean(axis=0)
_, axes = np.linalg.eigh(np.cov((x - mean).T))  # PCA, as the example has it of scikit-learn
x = np.abs((x - mean) @ axes[:, -12:]).astype("float32")
out = {}
for name, arguments in (
    ("L2", {}),
    ("L1", {"use_linear": True}),
    ("weighted", {"margin": 0.5, "regularization_coefficient": 0.3}),
):
    net = network(**arguments)
    train = mx.io.NDArrayIter(x[:80], labels[:80], 16, label_name="svm_label")
    test = mx.io.NDArrayIter(x[80:], labels[80:], 10, label_name="svm_label")
    seen = []
    module = mx.mod.Module(symbol=net, context=mx.cpu(), data_names=["data"], label_names=["svm_label"])
    module.fit(
        train_data=train,
        eval_data=test,
        eval_metric=[Hinge(), "acc"],
        initializer=ByShape(),
        num_epoch=2,
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.00001},
        batch_end_callback=lambda param: seen.append([float(value) for value in param.eval_metric.get()[1]]),
    )
    out[name] = {
        "arguments": net.list_arguments(),
        "seen": seen,
        "params": {key: float(value.asnumpy().sum()) for key, value in sorted(module.get_params()[0].items())},
        "score": [[key, float(value)] for key, value in module.score(test, [Hinge(), "acc"])],
    }
print(json.dumps(out))
