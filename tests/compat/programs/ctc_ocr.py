"""Lines of digits read by an LSTM and CTC, in the manner of MXNet's example/ctc: states as inputs, a greedy decoder."""

import json

import mxnet as mx
import numpy as np

STEPS, FEATURES, HIDDEN, CLASSES, LABELS, BATCH = 10, 5, 8, 6, 3, 4


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.4, 0.4, arr.shape)


def lstm_step(data, state, index, parameters):
    """One step of a cell written by hand, as the example has it."""
    hidden, memory = state
    i2h = mx.sym.FullyConnected(data, parameters["i2h_weight"], parameters["i2h_bias"], num_hidden=4 * HIDDEN)
    h2h = mx.sym.FullyConnected(hidden, parameters["h2h_weight"], parameters["h2h_bias"], num_hidden=4 * HIDDEN)
    gates = mx.sym.SliceChannel(i2h + h2h, num_outputs=4, name=f"t{index}_slice")
    in_gate, forget, out_gate = (mx.sym.Activation(gates[k], act_type="sigmoid") for k in (0, 2, 3))
    memory = forget * memory + in_gate * mx.sym.Activation(gates[1], act_type="tanh")
    return out_gate * mx.sym.Activation(memory, act_type="tanh"), memory


def network():
    parameters = {name: mx.sym.Variable("l0_" + name) for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}
    state = mx.sym.Variable("l0_init_h"), mx.sym.Variable("l0_init_c")
    columns = mx.sym.SliceChannel(mx.sym.Variable("data"), num_outputs=STEPS, axis=1, squeeze_axis=True)
    outputs = []
    for index in range(STEPS):
        state = lstm_step(columns[index], state, index, parameters)
        outputs.append(mx.sym.expand_dims(state[0], axis=0))
    pred = mx.sym.Reshape(mx.sym.Concat(*outputs, dim=0), shape=(-1, HIDDEN))
    pred = mx.sym.FullyConnected(pred, num_hidden=CLASSES, name="pred_fc")
    scores = mx.sym.Reshape(pred, shape=(STEPS, -1, CLASSES))
    loss = mx.sym.MakeLoss(mx.sym.contrib.ctc_loss(data=scores, label=mx.sym.Variable("label")), name="ctc")
    softmax = mx.sym.BlockGrad(mx.sym.softmax(scores, axis=2), name="softmax")
    return mx.sym.Group([softmax, loss])


def decode(probabilities):
    """The likeliest class of each step, without repeats and blanks."""
    best = probabilities.argmax(axis=2).T
    return [[int(k) for index, k in enumerate(row) if k and (index == 0 or row[index - 1] != k)] for row in best]


rng = np.random.RandomState(28)
patterns = rng.rand(CLASSES, FEATURES)
labels = rng.randint(1, CLASSES, (6 * BATCH, LABELS))
labels[::3, -1] = 0  # shorter ones end with zeros
columns = np.repeat(labels, 3, axis=1)
x = patterns[np.concatenate([columns, np.zeros((6 * BATCH, 1), int)], axis=1)] + 0.1 * rng.randn(
    6 * BATCH, STEPS, FEATURES
)
states = {"l0_init_c": np.zeros((6 * BATCH, HIDDEN)), "l0_init_h": np.zeros((6 * BATCH, HIDDEN))}
train = mx.io.NDArrayIter(dict(states, data=x), {"label": labels.astype("float32")}, BATCH)
net = network()
module = mx.mod.Module(net, data_names=[entry[0] for entry in train.provide_data], label_names=["label"])
module.bind(train.provide_data, train.provide_label)
module.init_params(ByShape())
module.init_optimizer(optimizer="adadelta", optimizer_params={"rho": 0.9, "rescale_grad": 1.0 / BATCH, "epsilon": 1e-3})
losses, decoded = [], []
for _ in range(2):
    train.reset()
    for batch in train:
        module.forward_backward(batch)
        probabilities, loss = (output.asnumpy() for output in module.get_outputs())
        losses.append(loss.tolist())
        module.update()
decoded = decode(probabilities)
inputs = {"data": (BATCH, STEPS, FEATURES), "label": (BATCH, LABELS)}
inputs.update(dict.fromkeys(states, (BATCH, HIDDEN)))
# The same loss of arrays, with lengths and with the blank as the last class.
scores = mx.nd.array(rng.randn(5, 2, 4))
lengths = [mx.nd.array([5, 4]), mx.nd.array([2, 1])]
options = {"use_data_lengths": True, "use_label_lengths": True, "blank_label": "last"}
direct = mx.nd.contrib.ctc_loss(scores, mx.nd.array([[0, 1], [2, -1]]), *lengths, **options)
out = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(**inputs)[1],
    "losses": losses,
    "decoded": decoded,
    "direct": direct.asnumpy().tolist(),
    "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(module.get_params()[0].items())},
}
print(json.dumps(out))
