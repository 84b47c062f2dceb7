"""YOLO's reorganisation layer as an operator of two CUDA kernels (NDArrayOp and mx.rtc), inside LeNet on digits.

    python examples/reorg_op.py [--epochs 2] [--gpu]

The layer makes four channels of half the height and width out of each channel: out channel 4 c + 2 dj + dk has the
pixels (2 j + dj, 2 k + dk) of channel c. Nothing is lost, so its gradient is the same move backwards.

Trained on MNIST when OPBOX_MNIST names a folder with its four files, and else on scikit-learn's 8 x 8 digits, enlarged.
Without OPBOX_URL the engine embedded in this Python computes; with it (and OPBOX_TOKEN) that server does.
"""

import argparse
import logging
import os

import numpy as np

import opbox as mx


class NDArrayReorg(mx.operator.NDArrayOp):
    """(n, c, h, w) to (n, c * stride ** 2, h / stride, w / stride)."""

    lint_cases = [{"data": (2, 3, 4, 6)}, {"data": (1, 1, 2, 2)}]

    def __init__(self, stride=2):
        super().__init__(True)
        self.stride = stride
        self.fwd_kernel = None
        self.bwd_kernel = None

    def list_arguments(self):
        return ["data"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        n, c, h, w = in_shape[0]
        s = self.stride
        return [in_shape[0]], [[n, c * s * s, h // s, w // s]]

    def forward(self, in_data, out_data):
        x = in_data[0]
        y = out_data[0]
        if not x.size:
            return
        if self.fwd_kernel is None:
            self.fwd_kernel = mx.rtc(
                "reorg",
                [("x", x)],
                [("y", y)],
                """
int i = threadIdx.x + blockIdx.x*blockDim.x;  // image and channel
int xh = x_dims[2], xw = x_dims[3], yh = y_dims[2], yw = y_dims[3];
int s = xh / yh;
int len_block = xh * xw, N = yh * yw;
for (int j = 0; j < xh; ++j)
    for (int k = 0; k < xw; ++k) {
        int part = (j % s) * s + k % s;
        y[i*len_block + part*N + (j/s)*yw + k/s] = x[i*len_block + j*xw + k];
    }
""",
            )
        self.fwd_kernel.push([x], [y], (x.shape[0] * x.shape[1], 1, 1), (1, 1, 1))

    def backward(self, out_grad, in_data, out_data, in_grad):
        dy = out_grad[0]
        dx = in_grad[0]
        if not dx.size:
            return
        if self.bwd_kernel is None:
            self.bwd_kernel = mx.rtc(
                "reorg_grad",
                [("dy", dy)],
                [("dx", dx)],
                """
int i = threadIdx.x + blockIdx.x*blockDim.x;
int xh = dx_dims[2], xw = dx_dims[3], yh = dy_dims[2], yw = dy_dims[3];
int s = xh / yh;
int len_block = xh * xw, N = yh * yw;
for (int j = 0; j < xh; ++j)
    for (int k = 0; k < xw; ++k) {
        int part = (j % s) * s + k % s;
        dx[i*len_block + j*xw + k] = dy[i*len_block + part*N + (j/s)*yw + k/s];
    }
""",
            )
        self.bwd_kernel.push([dy], [dx], (dx.shape[0] * dx.shape[1], 1, 1), (1, 1, 1))


def network():
    """LeNet with the reorganisation layer in place of its first pooling."""
    data = mx.sym.var("data")
    conv1 = mx.sym.Convolution(data=data, kernel=(5, 5), num_filter=20)
    tanh1 = mx.sym.Activation(data=conv1, act_type="tanh")
    reg = NDArrayReorg(stride=2)(data=tanh1, name="reorg")
    conv2 = mx.sym.Convolution(data=reg, kernel=(5, 5), num_filter=20)
    tanh2 = mx.sym.Activation(data=conv2, act_type="tanh")
    conv3 = mx.sym.Convolution(data=tanh2, kernel=(5, 5), num_filter=50)
    tanh3 = mx.sym.Activation(data=conv3, act_type="tanh")
    flatten = mx.sym.flatten(data=tanh3)
    fc1 = mx.sym.FullyConnected(data=flatten, num_hidden=500)
    tanh4 = mx.sym.Activation(data=fc1, act_type="tanh")
    fc2 = mx.sym.FullyConnected(data=tanh4, num_hidden=10)
    return mx.sym.SoftmaxOutput(data=fc2, name="softmax")


def digits():
    """Images (n, 1, 28, 28) and labels: of training, of validation."""
    if os.environ.get("OPBOX_MNIST"):
        mnist = mx.test_utils.get_mnist()
        return mnist["train_data"], mnist["train_label"], mnist["test_data"], mnist["test_label"]
    from sklearn.datasets import load_digits

    dataset = load_digits()
    order = np.random.RandomState(0).permutation(len(dataset.images))
    large = np.kron(dataset.images[order] / 16, np.ones((3, 3)))
    images = np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None].astype("float32")
    labels = dataset.target[order].astype("float32")
    return images[:1500], labels[:1500], images[1500:1700], labels[1500:1700]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--gpu", action="store_true", help="run on the engine's first GPU")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    np.random.seed(0)
    mx.random.seed(0)
    images, labels, val_images, val_labels = digits()
    train_iter = mx.io.NDArrayIter(images, labels, options.batch_size, shuffle=True)
    val_iter = mx.io.NDArrayIter(val_images, val_labels, options.batch_size)
    net = network()
    print(net.infer_shape(data=(options.batch_size, 1, 28, 28))[1])
    model = mx.mod.Module(symbol=net, context=mx.gpu() if options.gpu else mx.cpu())
    model.fit(
        train_iter,
        eval_data=val_iter,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1},
        initializer=mx.init.Xavier(),
        eval_metric="acc",
        batch_end_callback=mx.callback.Speedometer(options.batch_size, 10),
        num_epoch=options.epochs,
    )
    test_iter = mx.io.NDArrayIter(val_images, None, options.batch_size)
    print("probabilities of the first image:", model.predict(test_iter)[0].asnumpy().round(3))
    acc = mx.metric.Accuracy()
    model.score(val_iter, acc)
    print(f"validation accuracy: {acc.get()[1]:.4f}")


if __name__ == "__main__":
    main()
