"""Chains of modules with a loss in Python, in the manner of MXNet's example/module/python_loss.py; saved buckets."""

import json

import mxnet as mx
import numpy as np


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def multi_hinge_gradient(scores, labels):
    """The gradient of Weston's and Watkins's hinge loss."""
    scores, labels = scores.asnumpy(), labels.asnumpy().astype(int)
    rows = np.arange(len(labels))
    margins = 1 + scores - scores[rows, labels][:, None]
    margins[rows, labels] = 0
    grad = (margins > 0).astype("float32")
    grad[rows, labels] = -grad.sum(axis=1)
    return grad


def gradient_on_the_device(scores, labels):
    return mx.nd.softmax(scores) - mx.nd.one_hot(labels, 3)


def features(name, hidden, act):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=hidden, name=name)
    return mx.sym.Activation(net, act_type=act, name=f"{name}_act")


def sums(params):
    return {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(params.items())}


rng = np.random.RandomState(0)
x = rng.randn(60, 5).astype("float32")
y = x[:, :3].argmax(1).astype("float32")
out = {}
for label, grad_func in (("hinge", multi_hinge_gradient), ("softmax", gradient_on_the_device)):
    scores = mx.sym.FullyConnected(mx.sym.Variable("fc1_act_output"), num_hidden=3, name="fc2")
    chain = mx.mod.SequentialModule()
    chain.add(mx.mod.Module(features("fc1", 8, "relu"), label_names=[]))
    chain.add(mx.mod.Module(scores, data_names=["fc1_act_output"], label_names=[]))
    chain.add(mx.mod.PythonLossModule(grad_func=grad_func), take_labels=True, auto_wiring=True)
    train = mx.io.NDArrayIter(x, y, 12)
    seen = []
    chain.fit(
        train,
        eval_data=mx.io.NDArrayIter(x[:24], y[:24], 12),
        initializer=ByShape(),
        optimizer_params={"learning_rate": 0.1, "momentum": 0.5},
        num_epoch=2,
        batch_end_callback=lambda p: seen.append(float(p.eval_metric.get()[1])),
    )
    out[label] = {
        "seen": seen,
        "params": sums(chain.get_params()[0]),
        "score": dict(chain.score(train, "acc")),
        "names": [chain.data_names, chain.output_names, [list(shape) for _, shape in chain.output_shapes]],
        "predicted": chain.predict(train).asnumpy()[:3].tolist(),
    }


def by_length(length):
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(mx.sym.sum(data, axis=1, keepdims=True), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net * (1.0 / length), name="softmax"), ("data",), ("softmax_label",)


def batch(length):
    draw = np.random.RandomState(length)
    return mx.io.DataBatch(
        [mx.nd.array(draw.randn(4, length))],
        [mx.nd.array(draw.randint(0, 3, 4))],
        bucket_key=length,
        provide_data=[("data", (4, length))],
        provide_label=[("softmax_label", (4,))],
    )


module = mx.mod.BucketingModule(by_length, default_bucket_key=6)
module.bind([("data", (4, 6))], [("softmax_label", (4,))])
module.init_params(ByShape())
module.init_optimizer(optimizer_params={"learning_rate": 0.5})
for length in (6, 2, 3, 2):
    module.forward_backward(batch(length))
    module.update()
module.save_checkpoint("buckets", 4)
again = mx.mod.BucketingModule.load("buckets", 4, by_length, 6)
again.bind([("data", (4, 6))], [("softmax_label", (4,))], for_training=False)
again.forward(batch(3))
out["buckets"] = [sums(module.get_params()[0]), again.get_outputs()[0].asnumpy().tolist()]
print(json.dumps(out))
