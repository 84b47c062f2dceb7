"""Time series forecast by convolutions, recurrence and skips: example/multivariate_time_series, LSTNet."""

import json
import math

import mxnet as mx
import numpy as np

SERIES, WINDOW, BATCH, FILTER, FILTERS, SKIP = 4, 12, 8, 3, 5, 4


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def lstnet():
    x, y = mx.symbol.Variable("data"), mx.symbol.Variable("series_label")
    conv_input = mx.sym.reshape(data=x, shape=(0, 1, WINDOW, -1))
    padded = mx.sym.pad(conv_input, mode="constant", constant_value=0, pad_width=(0, 0, 0, 0, FILTER - 1, 0, 0, 0))
    conv = mx.sym.Convolution(data=padded, kernel=(FILTER, SERIES), num_filter=FILTERS, name="conv")
    conv = mx.sym.Activation(data=conv, act_type="relu")
    cnn = mx.sym.transpose(data=mx.sym.reshape(data=conv, shape=(0, 0, WINDOW)), axes=(0, 2, 1))
    rnn = mx.rnn.SequentialRNNCell()
    rnn.add(mx.rnn.GRUCell(num_hidden=6, prefix="gru_"))
    outputs, _ = rnn.unroll(length=WINDOW, inputs=cnn, merge_outputs=False)
    recurrent = outputs[-1]
    skip = mx.rnn.ResidualCell(mx.rnn.RNNCell(num_hidden=FILTERS, activation="relu", prefix="skip_"))
    outputs, _ = skip.unroll(length=WINDOW, inputs=cnn, merge_outputs=False)
    skipped = [outputs[WINDOW - 1 - index] for index in range(0, WINDOW, SKIP)]
    neural = mx.sym.concat(recurrent, *skipped, dim=1)
    neural = mx.sym.FullyConnected(data=neural, num_hidden=SERIES, name="neural_out")
    linear = []
    for index in range(SERIES):  # every series by itself, of its last values
        last = mx.sym.slice_axis(data=x, axis=2, begin=index, end=index + 1)
        last = mx.sym.slice_axis(data=last, axis=1, begin=-3, end=None)
        linear.append(mx.sym.FullyConnected(data=last, num_hidden=1, name=f"ar{index}"))
    return mx.sym.LinearRegressionOutput(data=neural + mx.sym.concat(*linear, dim=1), label=y, name="loss")


def rse(label, pred):
    return float(np.sqrt(np.mean((label - pred) ** 2)) / np.sqrt(np.mean((label - label.mean()) ** 2)))


def corr(label, pred):
    low = (label - label.mean(axis=0)) * (pred - pred.mean(axis=0))
    return float(np.mean(low.mean(axis=0) / (label.std(axis=0) * pred.std(axis=0))))


rng = np.random.RandomState(29)
time = np.arange(60)[:, None]
series = np.sin(2 * math.pi * time / np.array([4, 6, 8, 12])) + 0.1 * rng.randn(60, SERIES)
x = np.stack([series[begin : begin + WINDOW] for begin in range(5 * BATCH)]).astype("float32")
y = series[WINDOW : WINDOW + 5 * BATCH].astype("float32")
net = lstnet()
train = mx.io.NDArrayIter(x, y, BATCH, label_name="series_label")
module = mx.mod.Module(symbol=net, data_names=["data"], label_names=["series_label"])
metrics = mx.metric.CompositeEvalMetric([mx.metric.create(rse), mx.metric.create(corr), mx.metric.RMSE()])
seen, epochs = [], []
module.fit(
    train,
    eval_data=mx.io.NDArrayIter(x[-16:], y[-16:], BATCH, label_name="series_label"),
    eval_metric=metrics,
    optimizer="adam",
    optimizer_params={"learning_rate": 0.01, "beta1": 0.8},
    initializer=ByShape(),
    num_epoch=2,
    batch_end_callback=lambda param: seen.append([float(value) for value in param.eval_metric.get()[1]]),
    epoch_end_callback=lambda epoch, symbol, args, states: epochs.append(
        [epoch, float(args["conv_weight"].asnumpy().sum())]
    ),
)
out = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, WINDOW, SERIES)),
    "names": metrics.get()[0],
    "seen": seen,
    "epochs": epochs,
    "forecast": module.predict(mx.io.NDArrayIter(x, y, BATCH, label_name="series_label")).asnumpy()[:3].tolist(),
    "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(module.get_params()[0].items())},
}
print(json.dumps(out))
