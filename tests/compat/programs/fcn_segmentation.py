"""Pixels classified by a convolutional network, in the manner of MXNet's example/fcn-xs: bilinear upsampling, Crop."""

import json

import mxnet as mx
import numpy as np

SIZE, CLASSES, BATCH = 16, 3, 2


def fcn():
    data = mx.symbol.Variable("data")
    conv1 = mx.symbol.Convolution(data=data, kernel=(3, 3), pad=(3, 3), num_filter=4, name="conv1_1")
    relu1 = mx.symbol.Activation(data=conv1, act_type="relu", name="relu1_1")
    pool1 = mx.symbol.Pooling(data=relu1, pool_type="max", kernel=(2, 2), stride=(2, 2), name="pool1")
    conv2 = mx.symbol.Convolution(data=pool1, kernel=(3, 3), pad=(1, 1), num_filter=6, name="conv2_1")
    relu2 = mx.symbol.Activation(data=conv2, act_type="relu", name="relu2_1")
    pool2 = mx.symbol.Pooling(data=relu2, pool_type="max", kernel=(2, 2), stride=(2, 2), name="pool2")
    score = mx.symbol.Convolution(data=pool2, kernel=(1, 1), num_filter=CLASSES, name="score")
    score2 = mx.symbol.Deconvolution(
        data=score, kernel=(4, 4), stride=(2, 2), adj=(1, 1), num_filter=CLASSES, no_bias=True, name="score2"
    )
    score_pool1 = mx.symbol.Convolution(data=pool1, kernel=(1, 1), num_filter=CLASSES, name="score_pool1")
    score2c = mx.symbol.Crop(score2, score_pool1, center_crop=True, name="score2c")
    fused = score2c + score_pool1
    big = mx.symbol.Deconvolution(
        data=fused, kernel=(4, 4), stride=(2, 2), num_filter=CLASSES, no_bias=True, num_group=CLASSES, name="bigscore"
    )
    upscore = mx.symbol.Crop(big, data, offset=(3, 3), name="upscore")
    return mx.symbol.SoftmaxOutput(data=upscore, multi_output=True, use_ignore=True, ignore_label=255, name="softmax")


class Start(mx.init.Mixed):
    """Upsampling begins as bilinear interpolation; the rest by shape."""

    def __init__(self):
        super(Start, self).__init__(
            ["bigscore.*", "score2.*", ".*"], [mx.init.Bilinear(), mx.init.Bilinear(), ByShape()]
        )


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


rng = np.random.RandomState(25)
labels = np.zeros((5 * BATCH, SIZE, SIZE), "float32")
for index, (row, column, kind) in enumerate(zip(rng.randint(0, 9, 10), rng.randint(0, 9, 10), rng.randint(1, 3, 10))):
    labels[index, row : row + 7, column : column + 7] = kind
x = (np.eye(3)[labels.astype(int)].transpose(0, 3, 1, 2) + 0.3 * rng.randn(5 * BATCH, 3, SIZE, SIZE)).astype("float32")
labels[:, 0] = 255  # a border that does not count
net = fcn()
train = mx.io.NDArrayIter(x, labels, BATCH, label_name="softmax_label")
module = mx.mod.Module(net, context=mx.cpu(), fixed_param_names=["bigscore_weight"])
module.bind(train.provide_data, train.provide_label)
module.init_params(Start())
start = module.get_params()[0]["bigscore_weight"].asnumpy()[0, 0].tolist()
module.init_optimizer(optimizer_params={"learning_rate": 0.02, "momentum": 0.9, "rescale_grad": 1.0 / 64})
losses = []
for batch in train:
    module.forward_backward(batch)
    pred, label = module.get_outputs()[0].asnumpy(), batch.label[0].asnumpy().astype(int)
    counted = label != 255
    picked = np.take_along_axis(pred, np.where(counted, label, 0)[:, None], axis=1)[:, 0]
    losses.append([float(-np.log(picked[counted]).mean()), float((pred.argmax(axis=1) == label)[counted].mean())])
    module.update()
args, _ = module.get_params()
out = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, 3, SIZE, SIZE)),
    "internals": net.get_internals().infer_shape(data=(BATCH, 3, SIZE, SIZE))[1],
    "start": start,
    "losses": losses,
    "fixed": bool((args["bigscore_weight"].asnumpy()[0, 0] == np.array(start)).all()),
    "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(args.items())},
}
print(json.dumps(out))
