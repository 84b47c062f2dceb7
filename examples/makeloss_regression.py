"""A regression with a loss of its own: MakeLoss, with BlockGrad and Group to see the prediction beside it.

python examples/makeloss_regression.py
"""

import logging

import numpy as np

import opbox as mx


def network():
    """Outputs: the prediction (no gradient flows back from it), and the squared error."""
    x = mx.sym.Variable("data")
    y = mx.sym.FullyConnected(data=x, num_hidden=1)
    label = mx.sym.Variable("label")
    loss = mx.sym.MakeLoss(mx.sym.square(y - label))
    return mx.sym.Group([mx.sym.BlockGrad(y), loss])


def one_step(pred_loss, data, label):
    """Bind, run forward and backward once, and show the gradients."""
    ex = pred_loss.simple_bind(mx.cpu(), data=data.shape)  # the shape of label follows
    ex.forward(is_train=True, data=mx.nd.array(data), label=mx.nd.array(label))
    ex.backward()
    logging.info("arguments: %s", {name: array.shape for name, array in ex.arg_dict.items()})
    grads = dict(zip(pred_loss.list_arguments(), ex.grad_arrays, strict=True))
    for name in pred_loss.list_arguments():
        if name.endswith(("_weight", "_bias")):
            logging.info("%s: gradient %s", name, grads[name].asnumpy().ravel())


def train(pred_loss, data, label):
    """Fit the line, and return weight and bias."""
    mod = mx.mod.Module(pred_loss, label_names=("label",))
    batches = mx.io.NDArrayIter(data, {"label": label}, batch_size=32, shuffle=True)
    error = mx.metric.Loss(output_names=[pred_loss.list_outputs()[1]], label_names=[])
    mod.fit(batches, num_epoch=60, eval_metric=error, optimizer="adam", optimizer_params={"learning_rate": 0.05})
    logging.info("squared error after training: %.6f", mod.score(batches, error)[0][1])
    args, _ = mod.get_params()
    weight = next(value for name, value in args.items() if name.endswith("_weight"))
    bias = next(value for name, value in args.items() if name.endswith("_bias"))
    return weight.asnumpy().ravel(), bias.asnumpy().item()


def main():
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    np.random.seed(0)
    mx.random.seed(0)
    data = np.random.random(size=(320, 2)).astype("float32")
    label = (data @ [[2.0], [-3.0]] + 0.5).astype("float32")
    pred_loss = network()
    logging.getLogger().setLevel(logging.INFO)
    one_step(pred_loss, data[:32], label[:32])
    logging.getLogger().setLevel(logging.WARNING)
    weight, bias = train(pred_loss, data, label)
    print(f"y = {weight[0]:.2f} x1 + {weight[1]:.2f} x2 + {bias:.2f}   (expected 2.00, -3.00, 0.50)")


if __name__ == "__main__":
    main()
