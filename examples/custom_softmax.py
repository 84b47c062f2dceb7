"""Softmax as a CustomOp: the operator is written here, in Python, and runs on the server.

    python examples/custom_softmax.py [--epochs 12]

A multilayer perceptron, trained on scikit-learn's handwritten digits with it as its loss.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import opbox as mx


class Softmax(mx.operator.CustomOp):
    """Probabilities forward; their difference from the labels backward."""

    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
        y /= y.sum(axis=1).reshape((x.shape[0], 1))
        self.assign(out_data[0], req[0], mx.nd.array(y))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        label = in_data[1].asnumpy().ravel().astype(int)
        y = out_data[0].asnumpy()
        y[np.arange(label.shape[0]), label] -= 1.0
        self.assign(in_grad[0], req[0], mx.nd.array(y))


@mx.operator.register("softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    """A loss: it needs no gradient from above."""

    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        label_shape = (in_shape[0][0],)
        output_shape = in_shape[0]
        return [data_shape, label_shape], [output_shape], []

    def create_operator(self, ctx, shapes, dtypes):
        return Softmax()


def perceptron():
    """Two hidden layers and ten scores."""
    net = mx.sym.Variable("data")
    for name, width in (("1", 128), ("2", 64)):
        net = mx.sym.FullyConnected(data=net, name="fc" + name, num_hidden=width)
        net = mx.sym.Activation(data=net, name="relu" + name, act_type="relu")
    return mx.sym.FullyConnected(data=net, name="fc3", num_hidden=10)


def digits(batch_size):
    """Iterators over 1,400 of the digits, and over the other 397."""
    dataset = load_digits()
    order = np.random.permutation(len(dataset.target))
    images, labels = (dataset.data[order] / 16).astype("float32"), dataset.target[order].astype("float32")
    train_iter = mx.io.NDArrayIter(images[:1400], labels[:1400], batch_size, shuffle=True)
    return train_iter, mx.io.NDArrayIter(images[1400:], labels[1400:], batch_size)


def train(net, epochs):
    """Train on digits; the share of unseen ones that it reads right."""
    np.random.seed(0)
    mx.random.seed(0)
    train_iter, val_iter = digits(batch_size=50)
    mod = mx.mod.Module(net)
    mod.fit(
        train_iter,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        num_epoch=epochs,
    )
    [(_, accuracy)] = mod.score(val_iter, "acc")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    mlp = mx.symbol.Custom(data=perceptron(), name="softmax", op_type="softmax")
    print(f"validation accuracy: {train(mlp, options.epochs):.4f}")
