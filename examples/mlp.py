"""A multilayer perceptron with SoftmaxOutput, trained on scikit-learn's handwritten digits.

    python examples/mlp.py [--epochs 20]

Without OPBOX_URL the engine embedded in this Python computes; with it (and OPBOX_TOKEN) that server does.
"""

import argparse
import logging

import numpy as np
from sklearn.datasets import load_digits

import opbox as mx


def network():
    """Two hidden layers, and probabilities of ten classes."""
    data = mx.sym.Variable("data")
    fc1 = mx.sym.FullyConnected(data=data, name="fc1", num_hidden=128)
    act1 = mx.sym.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.sym.FullyConnected(data=act1, name="fc2", num_hidden=64)
    act2 = mx.sym.Activation(data=fc2, name="relu2", act_type="relu")
    fc3 = mx.sym.FullyConnected(data=act2, name="fc3", num_hidden=10)
    return mx.sym.SoftmaxOutput(data=fc3, name="softmax")


def digits(batch_size):
    """Iterators over the first 1,400 digits and the other 397."""
    dataset = load_digits()
    images, labels = (dataset.data / 16).astype("float32"), dataset.target.astype("float32")
    train = mx.io.NDArrayIter(images[:1400], labels[:1400], batch_size, shuffle=True)
    val = mx.io.NDArrayIter(images[1400:], labels[1400:], batch_size)
    return train, val


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=50)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    np.random.seed(0)
    mx.random.seed(0)
    train, val = digits(options.batch_size)
    mod = mx.mod.Module(network())
    mod.fit(
        train,
        eval_data=val,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        eval_metric="acc",
        batch_end_callback=mx.callback.Speedometer(options.batch_size, 14),
        num_epoch=options.epochs,
    )
    [(_, accuracy)] = mod.score(val, "acc")
    print(f"validation accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
