"""Every manner to feed a module, in the manner of MXNet's tutorials on data: CSV, NDArray, resized and prefetched."""

import gzip
import json
import struct

import mxnet as mx
import numpy as np


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


class SimpleIter(mx.io.DataIter):
    """The tutorial's iterator, which draws batches by functions."""

    def __init__(self, data_names, data_shapes, data_gen, label_names, label_shapes, label_gen, num_batches=3):
        super(SimpleIter, self).__init__()
        self._provide_data = list(zip(data_names, data_shapes))
        self._provide_label = list(zip(label_names, label_shapes))
        self.num_batches, self.data_gen, self.label_gen = num_batches, data_gen, label_gen
        self.cur_batch = 0

    def __iter__(self):
        return self

    def reset(self):
        self.cur_batch = 0

    @property
    def provide_data(self):
        return self._provide_data

    @property
    def provide_label(self):
        return self._provide_label

    def next(self):
        if self.cur_batch >= self.num_batches:
            raise StopIteration
        self.cur_batch += 1
        data = [mx.nd.array(gen(entry[1])) for entry, gen in zip(self._provide_data, self.data_gen)]
        label = [mx.nd.array(gen(entry[1])) for entry, gen in zip(self._provide_label, self.label_gen)]
        return mx.io.DataBatch(data, label)


def network():
    net = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Variable("data")), name="fc1", num_hidden=8)
    net = mx.sym.Activation(net, name="relu1", act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, name="fc2", num_hidden=3), name="softmax")


def read(batches):
    rows = []
    for batch in batches:
        rows.append([float(batch.data[0].asnumpy().sum()), float(batch.label[0].asnumpy().sum()), int(batch.pad or 0)])
    return rows


rng = np.random.RandomState(37)
x = rng.rand(22, 4).astype("float32")
y = x[:, :3].argmax(axis=1).astype("float32")
np.savetxt("data.csv", x, fmt="%.6f", delimiter=",")
np.savetxt("label.csv", y, fmt="%g", delimiter=",")
for name, magic, array in (("images", 2051, rng.randint(0, 256, (12, 5, 5))), ("labels", 2049, rng.randint(0, 3, 12))):
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    with open(name, "wb") as file:
        file.write(header + array.astype("uint8").tobytes())
    with gzip.open(name + ".gz", "wb") as file:
        file.write(header + array.astype("uint8").tobytes())

csv = {"data_csv": "data.csv", "data_shape": (4,), "label_csv": "label.csv", "label_shape": (1,), "batch_size": 5}
out = {
    "csv": read(mx.io.CSVIter(**csv)),
    "csv_discards": read(mx.io.CSVIter(round_batch=False, **csv)),
    "pad": read(mx.io.NDArrayIter(x, y, 5)),
    "discard": read(mx.io.NDArrayIter(x, y, 5, last_batch_handle="discard")),
    "resized": read(mx.io.ResizeIter(mx.io.NDArrayIter(x, y, 5), 7)),
    "prefetched": read(mx.io.PrefetchingIter(mx.io.NDArrayIter(x, y, 5))),
    "mnist": read(mx.io.MNISTIter(image="images", label="labels", batch_size=4, shuffle=False, flat=True, silent=True)),
}
rolling = mx.io.NDArrayIter(x, y, 5, last_batch_handle="roll_over")
out["rolled"] = read(rolling)
rolling.reset()
out["rolled"] += read(rolling)
np.random.seed(38)
shuffled = mx.io.NDArrayIter({"b": x, "a": x[:, 0]}, {"y": y}, 11, shuffle=True)
out["shuffled"] = [[list(batch.data[1].shape), float(batch.data[0].asnumpy().sum())] for batch in shuffled]
out["described"] = [
    [desc.name, list(desc.shape), str(np.dtype(desc.dtype)), desc.layout] for desc in shuffled.provide_data
]
merged = mx.io.PrefetchingIter(
    [mx.io.NDArrayIter(x, y, 11), mx.io.NDArrayIter(x[::-1], y[::-1], 11)],
    rename_data=[{"data": "first"}, {"data": "second"}],
    rename_label=[{"softmax_label": "one"}, {"softmax_label": "two"}],
)
out["merged"] = [[entry[0], list(entry[1])] for entry in merged.provide_data + merged.provide_label]

trained = {}
for name, train in (
    ("csv", mx.io.CSVIter(**csv)),
    ("resized", mx.io.ResizeIter(mx.io.NDArrayIter(x, y, 5), 6)),
    ("prefetched", mx.io.PrefetchingIter(mx.io.NDArrayIter(x, y, 11))),
    (
        "simple",
        SimpleIter(
            ["data"], [(5, 4)], [lambda s: np.full(s, 0.5)], ["softmax_label"], [(5,)], [lambda s: np.arange(s[0]) % 3]
        ),
    ),
):
    seen = []
    module = mx.mod.Module(network(), context=mx.cpu())
    if name == "csv":  # its labels have another name and an axis of 1
        batches = [mx.io.DataBatch(batch.data, [batch.label[0].reshape((-1,))]) for batch in train]
        module.bind([("data", (5, 4))], [("softmax_label", (5,))])
        module.init_params(ByShape())
        module.init_optimizer(optimizer_params={"learning_rate": 0.5})
        metric = mx.metric.create("ce")
        for batch in batches:
            module.forward_backward(batch)
            module.update_metric(metric, batch.label)
            module.update()
            seen.append(float(metric.get()[1]))
    else:
        module.fit(
            train,
            eval_metric="ce",
            num_epoch=2,
            initializer=ByShape(),
            optimizer_params={"learning_rate": 0.5},
            batch_end_callback=lambda param: seen.append(float(param.eval_metric.get()[1])),
        )
    trained[name] = seen
out["trained"] = trained
print(json.dumps(out))
