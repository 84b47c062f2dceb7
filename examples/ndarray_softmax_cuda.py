"""Softmax as an operator of two CUDA kernels (MXNet 0.9's NDArrayOp and mx.rtc), training an MLP on handwritten digits.

    python examples/ndarray_softmax_cuda.py [--epochs 15] [--gpu]

With --gpu the kernels are compiled for the server's GPU; without it they run through the CPU's emulator, which checks
every index. Without OPBOX_URL the engine embedded in this Python computes; with it (and OPBOX_TOKEN) that server does.
"""

import argparse
import logging

import numpy as np
from sklearn.datasets import load_digits

import opbox as mx


class NDArraySoftmax(mx.operator.NDArrayOp):
    """Softmax over rows; its gradient is that of the cross entropy with `label`, so it needs none from above."""

    def __init__(self):
        super().__init__(False)
        self.fwd_kernel = None
        self.bwd_kernel = None

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        label_shape = (in_shape[0][0],)
        output_shape = in_shape[0]
        return [data_shape, label_shape], [output_shape]

    def forward(self, in_data, out_data):
        x = in_data[0]
        y = out_data[0]
        if not x.size:
            return  # a launch needs threads
        if self.fwd_kernel is None:
            self.fwd_kernel = mx.rtc(
                "softmax",
                [("x", x)],
                [("y", y)],
                """
int i = threadIdx.x + blockIdx.x*blockDim.x;
float max_x = x[i*x_dims[1]];
for (int j = 1; j < x_dims[1]; ++j) {
    if (max_x < x[i*x_dims[1]+j]) {
        max_x = x[i*x_dims[1]+j];
    }
}
float sum = 0.0f;
for (int j = 0; j < x_dims[1]; ++j) {
    sum += expf(x[i*x_dims[1]+j]-max_x);
}
for (int j = 0; j < x_dims[1]; ++j) {
    y[i*x_dims[1]+j] = expf(x[i*x_dims[1]+j]-max_x)/sum;
}
""",
            )
        self.fwd_kernel.push([x], [y], (1, 1, 1), (x.shape[0], 1, 1))

    def backward(self, out_grad, in_data, out_data, in_grad):
        l = in_data[1]  # noqa: E741
        y = out_data[0]
        dx = in_grad[0]
        if not dx.size:
            return
        if self.bwd_kernel is None:
            self.bwd_kernel = mx.rtc(
                "softmax_grad",
                [("y", y), ("l", l)],
                [("dx", dx)],
                """
int i = blockIdx.x;
int j = threadIdx.x;
int k = static_cast<int>(l[i]);
if (j == k) {
    dx[i*dx_dims[1]+j] = y[i*dx_dims[1]+j] - 1.0f;
} else {
    dx[i*dx_dims[1]+j] = y[i*dx_dims[1]+j];
}
""",
            )
        self.bwd_kernel.push([y, l], [dx], (y.shape[0], 1, 1), (y.shape[1], 1, 1))


def network():
    """Two hidden layers, and probabilities of ten classes by the operator above."""
    data = mx.symbol.Variable("data")
    fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=128)
    act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=64)
    act2 = mx.symbol.Activation(data=fc2, name="relu2", act_type="relu")
    fc3 = mx.symbol.FullyConnected(data=act2, name="fc3", num_hidden=10)
    mysoftmax = NDArraySoftmax()
    return mysoftmax(data=fc3, name="softmax")


def digits(batch_size):
    """Iterators over 1,500 of the digits and over 200 others, drawn at random."""
    dataset = load_digits()
    order = np.random.RandomState(0).permutation(len(dataset.data))
    images, labels = (dataset.data[order] / 16).astype("float32"), dataset.target[order].astype("float32")
    train = mx.io.NDArrayIter(images[:1500], labels[:1500], batch_size, shuffle=True)
    val = mx.io.NDArrayIter(images[1500:1700], labels[1500:1700], batch_size)
    return train, val


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--gpu", action="store_true", help="run on the engine's first GPU")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    np.random.seed(0)
    mx.random.seed(0)
    train, val = digits(100)
    mod = mx.mod.Module(network(), context=mx.gpu() if options.gpu else mx.cpu())
    mod.fit(
        train,
        eval_data=val,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.00001},
        initializer=mx.init.Xavier(),
        eval_metric="acc",
        num_epoch=options.epochs,
    )
    [(_, accuracy)] = mod.score(val, "acc")
    print(f"validation accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
