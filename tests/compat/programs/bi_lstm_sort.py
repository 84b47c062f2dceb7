"""Sequences sorted by a bidirectional LSTM, fused and unfused, in the manner of MXNet's example/bi-lstm-sort."""

import json

import mxnet as mx
import numpy as np

LENGTH, BATCH, WORDS, HIDDEN = 5, 8, 10, 6


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0]).uniform(-0.4, 0.4, arr.shape)


def head(outputs):
    pred = mx.sym.Reshape(outputs, shape=(-1, 2 * HIDDEN))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=WORDS, name="pred")
    label = mx.sym.Reshape(data=mx.sym.Variable("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(data=pred, label=label, name="softmax")


def cells():
    return mx.rnn.BidirectionalCell(
        mx.rnn.LSTMCell(num_hidden=HIDDEN, prefix="bi_l0_"),
        mx.rnn.LSTMCell(num_hidden=HIDDEN, prefix="bi_r0_"),
        output_prefix="bi_",
    )


def network(cell):
    embed = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=WORDS, output_dim=4, name="embed")
    outputs, _ = cell.unroll(LENGTH, inputs=embed, layout="NTC", merge_outputs=True)
    return head(outputs)


def train(net, args=None):
    batches = mx.io.NDArrayIter(x, y, BATCH, label_name="softmax_label")
    module = mx.mod.Module(net, context=mx.cpu())
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(ByShape(), arg_params=args, allow_missing=args is not None)
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.05})
    losses = []
    for batch in batches:
        module.forward_backward(batch)
        metric = mx.metric.CrossEntropy()
        predicted = module.get_outputs()[0]
        metric.update([batch.label[0].reshape((-1,))], [predicted])
        losses.append(float(metric.get()[1]))
        module.update()
    return losses, module


rng = np.random.RandomState(5)
x = rng.randint(0, WORDS, (5 * BATCH, LENGTH)).astype("float32")
y = np.sort(x, axis=1)
out = {}
net = network(cells())
losses, module = train(net)
out["cells"] = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, LENGTH), softmax_label=(BATCH, LENGTH)),
    "losses": losses,
    "params": {name: float(value.asnumpy().sum()) for name, value in sorted(module.get_params()[0].items())},
}

# The RNN operator with all weights in one vector, and the cells that it stands for.
fused = mx.rnn.FusedRNNCell(HIDDEN, num_layers=1, mode="lstm", bidirectional=True, prefix="bi_", forget_bias=1.0)
together = network(fused)
size = together.infer_shape(data=(BATCH, LENGTH), softmax_label=(BATCH, LENGTH))[0][
    together.list_arguments().index("bi_parameters")
][0]
vector = mx.nd.array(np.random.RandomState(9).uniform(-0.4, 0.4, (size,)))
losses, module = train(together, {"bi_parameters": vector})
params = module.get_params()[0]
unfused = fused.unfuse()
unpacked = fused.unpack_weights(dict(params))
apart = network(unfused)
packed = unfused.pack_weights(dict(unpacked))
repeated, _ = train(apart, unfused.pack_weights(fused.unpack_weights({"bi_parameters": vector})))
executor = apart.simple_bind(mx.cpu(), grad_req="null", data=(BATCH, LENGTH), softmax_label=(BATCH, LENGTH))
executor.copy_params_from(packed)
sorted_words = executor.forward(data=mx.nd.array(x[:BATCH]))[0].asnumpy()
out["fused"] = {
    "arguments": together.list_arguments(),
    "losses": losses,
    "unfused": apart.list_arguments(),
    "repeated": repeated,
    "unpacked": {name: [list(value.shape), float(value.asnumpy().sum())] for name, value in sorted(unpacked.items())},
    "predicted": sorted_words[:3].tolist(),
}
print(json.dumps(out))
