"""Two classifications by one network, in the manner of MXNet's example/multi-task: a Group, a metric of each head."""

import json

import mxnet as mx
import numpy as np


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def build_network():
    data = mx.symbol.Variable("data")
    fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=16)
    act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=8)
    act2 = mx.symbol.Activation(data=fc2, name="relu2", act_type="relu")
    fc3 = mx.symbol.FullyConnected(data=act2, name="fc3", num_hidden=6)
    fc4 = mx.symbol.FullyConnected(data=act2, name="fc4", num_hidden=2)
    sm1 = mx.symbol.SoftmaxOutput(data=fc3, name="softmax1")
    sm2 = mx.symbol.SoftmaxOutput(data=fc4, name="softmax2", grad_scale=0.5)
    return mx.symbol.Group([sm1, sm2])


class MultiTaskIter(mx.io.DataIter):
    """An iterator that gives the label a second time, as its parity."""

    def __init__(self, data_iter):
        super(MultiTaskIter, self).__init__()
        self.data_iter = data_iter
        self.batch_size = self.data_iter.batch_size

    @property
    def provide_data(self):
        return self.data_iter.provide_data

    @property
    def provide_label(self):
        provide_label = self.data_iter.provide_label[0]
        return [("softmax1_label", provide_label[1]), ("softmax2_label", provide_label[1])]

    def hard_reset(self):
        self.data_iter.hard_reset()

    def reset(self):
        self.data_iter.reset()

    def next(self):
        batch = self.data_iter.next()
        label = batch.label[0]
        return mx.io.DataBatch(data=batch.data, label=[label, label % 2], pad=batch.pad, index=batch.index)


class MultiAccuracy(mx.metric.EvalMetric):
    """Accuracies of several outputs."""

    def __init__(self, num=None):
        self.num = num
        super(MultiAccuracy, self).__init__("multi-accuracy")

    def reset(self):
        self.num_inst = 0 if self.num is None else [0] * self.num
        self.sum_metric = 0.0 if self.num is None else [0.0] * self.num

    def update(self, labels, preds):
        mx.metric.check_label_shapes(labels, preds)
        for index in range(len(labels)):
            pred_label = mx.nd.argmax_channel(preds[index]).asnumpy().astype("int32")
            label = labels[index].asnumpy().astype("int32")
            mx.metric.check_label_shapes(label, pred_label)
            self.sum_metric[index] += int((pred_label.flat == label.flat).sum())
            self.num_inst[index] += len(pred_label.flat)

    def get(self):
        return zip(
            *((f"{self.name}-task{index}", self.sum_metric[index] / self.num_inst[index]) for index in range(self.num))
        )

    def get_name_value(self):
        names, values = self.get()
        return list(zip(names, values))


rng = np.random.RandomState(14)
prototypes = rng.randn(6, 10)
labels = rng.randint(0, 6, 100).astype("float32")
x = (prototypes[labels.astype(int)] + 0.4 * rng.randn(100, 10)).astype("float32")
train = MultiTaskIter(mx.io.NDArrayIter(x[:80], labels[:80], 16))
val = MultiTaskIter(mx.io.NDArrayIter(x[80:], labels[80:], 20))
net = build_network()
seen, heads = [], []


def each_batch(param):
    seen.append([[name, float(value)] for name, value in param.eval_metric.get_name_value()])
    heads.append([float(mx.nd.mean(head).asscalar()) for head in param.locals["self"].get_outputs()])
    heads[-1] += [float(-mx.nd.log(head[:, 0]).mean().asscalar()) for head in param.locals["self"].get_outputs()]


model = mx.mod.Module(context=mx.cpu(), symbol=net, label_names=("softmax1_label", "softmax2_label"))
model.fit(
    train_data=train,
    eval_data=val,
    eval_metric=MultiAccuracy(num=2),
    num_epoch=1,
    optimizer_params=(("learning_rate", 0.3), ("momentum", 0.9), ("wd", 0.00001)),
    initializer=ByShape(),
    batch_end_callback=each_batch,
)
predicted = model.predict(val)
out = {
    "names": [net.list_arguments(), net.list_outputs(), model.label_names],
    "shapes": model.output_shapes,
    "seen": seen,
    "heads": heads,
    "score": [[name, float(value)] for name, value in model.score(val, MultiAccuracy(num=2))],
    "predicted": [head.asnumpy()[:3].tolist() for head in predicted],
    "params": {name: float(value.asnumpy().sum()) for name, value in sorted(model.get_params()[0].items())},
}
print(json.dumps(out))
