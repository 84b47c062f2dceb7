"""Softmax as a NumpyOp, MXNet 0.9's way: an instance is called on symbols, and writes its arrays in place.

    python examples/numpy_softmax.py [--epochs 12]

The network and its training are those of custom_softmax.py.
"""

import argparse

import numpy as np
from custom_softmax import perceptron, train

import opbox as mx


class NumpySoftmax(mx.operator.NumpyOp):
    """Probabilities forward; their difference from the labels backward."""

    def __init__(self):
        super().__init__(False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        label_shape = (in_shape[0][0],)
        return [data_shape, label_shape], [data_shape]

    def forward(self, in_data, out_data):
        x, y = in_data[0], out_data[0]
        y[:] = np.exp(x - x.max(axis=1, keepdims=True))
        y /= y.sum(axis=1, keepdims=True)

    def backward(self, out_grad, in_data, out_data, in_grad):
        label = in_data[1].astype(int)
        dx = in_grad[0]
        dx[:] = out_data[0]
        dx[np.arange(label.shape[0]), label] -= 1.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    softmax = NumpySoftmax()
    mlp = softmax(data=perceptron(), name="softmax")
    print(f"validation accuracy: {train(mlp, options.epochs):.4f}")
