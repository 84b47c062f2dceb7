"""Four digits of one image, in the manner of MXNet's example/captcha: one softmax over labels that are joined."""

import json

import mxnet as mx
import numpy as np

DIGITS, BATCH = 4, 6


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def get_ocrnet():
    data = mx.symbol.Variable("data")
    label = mx.symbol.Variable("softmax_label")
    conv1 = mx.symbol.Convolution(data=data, kernel=(5, 5), pad=(1, 1), num_filter=4)
    pool1 = mx.symbol.Pooling(data=conv1, pool_type="max", kernel=(2, 2), stride=(1, 1))
    relu1 = mx.symbol.Activation(data=pool1, act_type="relu")
    conv2 = mx.symbol.Convolution(data=relu1, kernel=(3, 3), num_filter=6)
    pool2 = mx.symbol.Pooling(data=conv2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    relu2 = mx.symbol.Activation(data=pool2, act_type="relu")
    fc1 = mx.symbol.FullyConnected(data=mx.symbol.Flatten(data=relu2), num_hidden=24)
    digits = [mx.symbol.FullyConnected(data=fc1, num_hidden=10) for _ in range(DIGITS)]
    fc2 = mx.symbol.Concat(*digits, dim=0)
    label = mx.symbol.transpose(data=label)
    label = mx.symbol.Reshape(data=label, shape=(-1,))
    return mx.symbol.SoftmaxOutput(data=fc2, label=label, name="softmax")


class CaptchaIter(mx.io.DataIter):
    """Draws images as it goes."""

    def __init__(self, count, batch_size, height, width):
        super(CaptchaIter, self).__init__()
        self.count, self.batch_size = count, batch_size
        self.provide_data = [mx.io.DataDesc("data", (batch_size, 1, height, width))]
        self.provide_label = [mx.io.DataDesc("softmax_label", (batch_size, DIGITS))]
        self.reset()

    def __iter__(self):
        for _ in range(self.count):
            labels = self.rng.randint(0, 10, (self.batch_size, DIGITS))
            images = glyphs[labels].transpose(0, 2, 1, 3).reshape(self.batch_size, 1, 8, 5 * DIGITS)
            images = images + 0.1 * self.rng.randn(*images.shape)
            yield mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels)], pad=0)

    def reset(self):
        self.rng = np.random.RandomState(30)


def whole_accuracy(label, pred):
    """The rate of images of which all digits are right."""
    best = np.argmax(pred.reshape(DIGITS, -1, 10), axis=2).T
    return float((best == label).all(axis=1).mean())


def digit_entropy(label, pred):
    rows = label.T.reshape(-1).astype(int)
    return float(-np.log(pred[np.arange(len(rows)), rows]).mean())


glyphs = (np.random.RandomState(31).rand(10, 8, 5) > 0.5).astype("float32")
net = get_ocrnet()
train = CaptchaIter(5, BATCH, 8, 5 * DIGITS)
seen = []
module = mx.mod.Module(symbol=net, context=mx.cpu())
module.fit(
    train,
    eval_data=train,
    eval_metric=[whole_accuracy, digit_entropy],
    initializer=ByShape(),
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.01, "momentum": 0.9, "wd": 0.00001},
    num_epoch=2,
    batch_end_callback=lambda param: seen.append([float(value) for value in param.eval_metric.get()[1]]),
)
module.save_checkpoint("captcha", 2)
symbol, args, aux = mx.model.load_checkpoint("captcha", 2)
# Prediction of one image binds the saved network again, as a predictor does.
single = mx.mod.Module(symbol, context=mx.cpu())
single.bind([("data", (1, 1, 8, 5 * DIGITS))], [("softmax_label", (1, DIGITS))], for_training=False)
single.set_params(args, aux)
image = glyphs[[3, 1, 4, 1]].transpose(1, 0, 2).reshape(1, 1, 8, 5 * DIGITS)
single.forward(mx.io.DataBatch([mx.nd.array(image)], []), is_train=False)
out = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, 1, 8, 5 * DIGITS), softmax_label=(BATCH, DIGITS)),
    "seen": seen,
    "read": single.get_outputs()[0].asnumpy().tolist(),
    "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(args.items())},
}
print(json.dumps(out))
