"""Run by MXNet 1.9.1's Python: builds graphs, runs them, and writes what MXNet says of each into a folder.

    python mxnet_graphs.py FOLDER [symbol.json …]

For each graph: NAME.json (the symbol, its lists, shapes and types) and NAME.npz (arguments, outputs, gradients). Symbol
files that are named are loaded, and described the same way.
"""

import json
import sys
import warnings

warnings.simplefilter("ignore")

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

sym = mx.sym


def mlp():
    x = sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1")
    x = sym.FullyConnected(sym.Activation(x, act_type="relu", name="relu1"), num_hidden=4, name="fc2")
    return sym.SoftmaxOutput(x, name="softmax"), {"data": (5, 6)}


def convolutional():
    x = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv")
    x = sym.Activation(sym.BatchNorm(x, fix_gamma=False, name="bn"), act_type="relu")
    y = sym.Convolution(x, kernel=(1, 1), num_filter=4, no_bias=True, name="side")
    x = sym.Pooling(x + y, kernel=(2, 2), stride=(2, 2), pool_type="max")
    return sym.FullyConnected(sym.Flatten(x), num_hidden=3, name="fc"), {"data": (2, 3, 6, 6)}


def lstm():
    cells = mx.rnn.SequentialRNNCell()
    cells.add(mx.rnn.LSTMCell(5, prefix="one_"))
    cells.add(mx.rnn.LSTMCell(4, prefix="two_"))
    out, _ = cells.unroll(3, sym.Variable("data"), merge_outputs=True)
    return sym.FullyConnected(sym.Reshape(out, shape=(-1, 4)), num_hidden=2, name="fc"), {"data": (2, 3, 6)}


def shared_weights():
    w = sym.Variable("w")
    x = sym.Variable("data")
    for i in range(4):
        x = sym.Activation(sym.FullyConnected(x, weight=w, num_hidden=5, no_bias=True, name=f"fc{i}"), act_type="tanh")
    return x, {"data": (3, 5)}


def residual_sums():
    x = sym.Variable("data")
    for i in range(4):
        x = x + x * sym.Variable(f"scale{i}")
    return x - sym.Variable("data2"), {"data": (3, 4), "data2": (3, 4)}


def multi_output():
    parts = sym.SliceChannel(sym.Variable("data"), num_outputs=3, axis=1, name="slice")
    return sym.Group([parts[2] * parts[0], sym.Concat(parts[1], parts[0], dim=1, name="cat")]), {"data": (2, 6)}


def blocked_loss():
    x = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    return sym.BlockGrad(sym.SoftmaxOutput(x, name="softmax")), {"data": (4, 5)}


def group_of_losses():
    x = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    loss = sym.MakeLoss(sym.sum(sym.square(x - sym.Variable("label")), axis=1), name="loss")
    return sym.Group([loss, sym.BlockGrad(x, name="seen")]), {"data": (4, 5), "label": (4, 3)}


def scaled_loss():
    x = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    return sym.SoftmaxOutput(x, name="softmax") * 2, {"data": (4, 5)}


def variable_heads():
    a, b = sym.Variable("a"), sym.Variable("b")
    return sym.Group([a, a * b, b]), {"a": (2, 3), "b": (2, 3)}


def views():
    x = sym.Reshape(sym.Variable("data"), shape=(-1, 4), name="r1")
    y = sym.exp(sym.expand_dims(x, axis=0)) * 2
    return sym.Group([sym.Flatten(y), sym.Reshape(x, shape=(2, -1))]), {"data": (2, 2, 4)}


def attributes():
    with mx.AttrScope(ctx_group="dev1", lr_mult="2"):
        w = sym.Variable("w", shape=(3, 0), lr_mult=0.5, wd_mult=0, init=mx.init.Zero(), dtype="float32")
        x = sym.FullyConnected(sym.Variable("data", attr={"tag": "mine"}), weight=w, num_hidden=3, name="fc")
    return x, {"data": (2, 4)}


BUILDERS = (
    mlp,
    convolutional,
    lstm,
    shared_weights,
    residual_sums,
    multi_output,
    blocked_loss,
    group_of_losses,
    scaled_loss,
    variable_heads,
    views,
    attributes,
)


def describe(symbol, shapes):
    args, outs, aux = symbol.infer_shape(**shapes)
    types = symbol.infer_type(**{next(iter(shapes)): np.float32})
    return {
        "symbol": symbol.tojson(),
        "given": shapes,
        "arg_names": symbol.list_arguments(),
        "out_names": symbol.list_outputs(),
        "aux_names": symbol.list_auxiliary_states(),
        "arg_shapes": args,
        "out_shapes": outs,
        "aux_shapes": aux,
        "arg_types": [np.dtype(t).name for t in types[0]] if types[0] else None,
    }


def run(symbol, shapes):
    rng = np.random.RandomState(3)
    ex = symbol.simple_bind(mx.cpu(), grad_req="write", **shapes)
    arrays = {}
    for name, array in ex.arg_dict.items():
        array[:] = rng.randint(0, 3, array.shape) if name.endswith("label") else rng.uniform(-1, 1, array.shape)
        arrays["arg:" + name] = array.asnumpy()
    for name, array in ex.aux_dict.items():
        array[:] = rng.uniform(0.5, 1, array.shape)
        arrays["aux:" + name] = array.asnumpy()
    outputs = ex.forward(is_train=True)
    heads = [mx.nd.array(rng.uniform(-1, 1, out.shape)) for out in outputs]
    try:
        ex.backward()
        arrays["needs_heads"] = np.array(False)
    except mx.MXNetError:
        arrays["needs_heads"] = np.array(True)
        ex.forward(is_train=True)
        ex.backward(heads)
    for i, (out, head) in enumerate(zip(ex.outputs, heads, strict=False)):
        arrays[f"out:{i}"], arrays[f"head:{i}"] = out.asnumpy(), head.asnumpy()
    for name, array in ex.grad_dict.items():
        arrays["grad:" + name] = array.asnumpy()
    for name, array in ex.aux_dict.items():
        arrays["new:" + name] = array.asnumpy()
    return arrays


def main(folder, files):
    for build in BUILDERS:
        symbol, shapes = build()
        with open(f"{folder}/{build.__name__}.json", "w") as out:
            json.dump(describe(symbol, shapes), out)
        np.savez(f"{folder}/{build.__name__}.npz", **run(symbol, shapes))
    for path in files:
        with open(path) as read:
            asked = json.load(read)
        symbol = mx.sym.load_json(asked["symbol"])
        with open(path + ".told", "w") as out:
            json.dump(describe(symbol, {name: tuple(dims) for name, dims in asked["given"].items()}), out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
