"""Records what MXNet 1.9.1 computes for the training tests: run with its Python, writes mxnet_values.json here.

python tests/training/record_mxnet.py        (an interpreter with mxnet==1.9.1, numpy==1.23.5)
"""

import json
import logging
import os
import warnings

import mxnet as mx
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
warnings.simplefilter("ignore")


def plain(value):
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value


# The inputs are made by tests too, from the same seeds and calls.
def metric_inputs():
    rng = np.random.RandomState(7)
    batches = []
    for _ in range(3):
        scores = rng.rand(8, 5).astype("float32")
        scores /= scores.sum(axis=1, keepdims=True)
        classes = rng.randint(0, 5, 8).astype("float32")
        two = rng.rand(8, 2).astype("float32")
        binary = rng.randint(0, 2, 8).astype("float32")
        values, guesses = rng.randn(8).astype("float32"), rng.randn(8, 1).astype("float32")
        batches.append((scores, classes, two, binary, values, guesses))
    return batches


METRICS = [
    ("acc", {}, (1, 0)),
    ("accuracy", {"axis": 1}, (1, 0)),
    ("top_k_accuracy", {"top_k": 3}, (1, 0)),
    ("f1", {}, (3, 2)),
    ("f1", {"average": "micro"}, (3, 2)),
    ("mcc", {}, (3, 2)),
    ("mcc", {"average": "micro"}, (3, 2)),
    ("pcc", {}, (1, 0)),
    ("perplexity", {"ignore_label": None}, (1, 0)),
    ("perplexity", {"ignore_label": 2}, (1, 0)),
    ("mae", {}, (4, 5)),
    ("mse", {}, (4, 5)),
    ("rmse", {}, (4, 5)),
    ("ce", {}, (1, 0)),
    ("nll_loss", {}, (1, 0)),
    ("pearsonr", {}, (5, 5)),
    ("pearsonr", {"average": "micro"}, (5, 5)),
    ("loss", {}, (1, 0)),
    ("torch", {}, (1, 0)),
]


def metrics():
    rows = []
    for name, options, (label, pred) in METRICS:
        metric = mx.metric.create(name, **options)
        steps = []
        for number, batch in enumerate(metric_inputs()):
            labels = batch[label]
            preds = batch[pred]
            if name == "pearsonr":
                labels = batch[4].reshape(8, 1)
            metric.update([mx.nd.array(labels)], [mx.nd.array(preds)])
            steps.append([metric.get_name_value(), metric.get_global_name_value()])
            if number == 1:
                metric.reset_local()
        rows.append({"name": name, "options": options, "inputs": [label, pred], "steps": steps})
    return rows


OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.5, "rescale_grad": 0.25}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 0.5}),
    ("nag", {"learning_rate": 0.1}),
    ("adam", {"wd": 0.01, "rescale_grad": 0.5}),
    ("adam", {"learning_rate": 0.01, "clip_gradient": 0.3, "beta1": 0.8, "epsilon": 1e-4}),
    ("adagrad", {"learning_rate": 0.1, "wd": 0.01, "clip_gradient": 0.4}),
    ("rmsprop", {"learning_rate": 0.01, "wd": 0.01}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True, "clip_weights": 0.9}),
    ("adadelta", {"wd": 0.01, "rescale_grad": 0.5, "clip_gradient": 0.3}),
    ("ftrl", {"learning_rate": 0.1, "wd": 0.01, "lamda1": 0.05}),
    ("ftml", {"learning_rate": 0.01, "wd": 0.01, "clip_gradient": 0.4}),
    ("signum", {"learning_rate": 0.01, "wd": 0.01, "wd_lh": 0.02}),
    ("signum", {"learning_rate": 0.01, "momentum": 0.0, "wd": 0.1}),
    ("adamax", {"wd": 0.01, "clip_gradient": 0.5}),
    ("nadam", {"wd": 0.01}),
    ("dcasgd", {"learning_rate": 0.1}),
    ("test", {"rescale_grad": 0.5}),
    ("lamb", {"wd": 0.01, "rescale_grad": 0.5}),
    ("lamb", {"learning_rate": 0.1, "clip_gradient": 0.3, "bias_correction": False, "upper_bound": 2.0}),
    ("lars", {"learning_rate": 0.1, "eta": 0.1, "wd": 0.01, "rescale_grad": 0.5}),
    ("lars", {"learning_rate": 0.1, "momentum": 0.9, "eta": 0.1, "wd": 0.01, "clip_gradient": 0.4}),
    ("lbsgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "batch_scale": 2, "updates_per_epoch": 1}),
    ("lbsgd", {"learning_rate": 0.1, "batch_scale": 2, "warmup_strategy": "sqrt", "updates_per_epoch": 2}),
    ("lbsgd", {"learning_rate": 0.1, "batch_scale": 2, "warmup_strategy": "power2", "clip_gradient": 0.5}),
    ("lbsgd", {"learning_rate": 0.1, "momentum": 0.9, "warmup_strategy": "lars", "wd": 0.01, "rescale_grad": 0.5}),
    ("lamb", {"learning_rate": 0.1, "multi_precision": True, "dtype": "float16"}),
    ("lars", {"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True, "dtype": "float16"}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True, "dtype": "float16"}),
    ("adam", {"learning_rate": 0.1, "multi_precision": True, "dtype": "float16"}),
]


def optimizer_inputs(dtype="float32"):
    rng = np.random.RandomState(11)
    weights = [rng.randn(3, 4).astype(dtype), rng.randn(4).astype(dtype)]
    grads = [[rng.randn(3, 4).astype(dtype), rng.randn(4).astype(dtype)] for _ in range(4)]
    return weights, grads


def optimizers():
    rows = []
    for name, options in OPTIMIZERS:
        options = dict(options)
        dtype = options.pop("dtype", "float32")
        weights, grads = optimizer_inputs(dtype)
        optimizer = mx.optimizer.create(name, param_idx2name={0: "fc_weight", 1: "fc_bias"}, **options)
        updater = mx.optimizer.get_updater(optimizer)
        arrays = [mx.nd.array(w, dtype=dtype) for w in weights]
        steps = []
        for step in grads:
            updater([0, 1], [mx.nd.array(g, dtype=dtype) for g in step], arrays)
            steps.append([a.asnumpy() for a in arrays])
        rows.append({"name": name, "options": options, "dtype": dtype, "steps": steps})
    return rows


def multipliers():
    """Which rate and decay each parameter of a network gets, by names and attributes."""
    data = mx.sym.Variable("data")
    weight = mx.sym.Variable("fc1_weight", lr_mult=0.5, wd_mult=3.0)
    net = mx.sym.FullyConnected(data, weight=weight, num_hidden=3, name="fc1")
    net = mx.sym.BatchNorm(net, name="bn")
    net = mx.sym.FullyConnected(net, bias=mx.sym.Variable("out", wd_mult=2.0), num_hidden=2, name="fc2")
    names = [n for n in net.list_arguments() if n != "data"]
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, wd=0.01, sym=net, param_idx2name=dict(enumerate(names)))
    optimizer.set_lr_mult({"fc2_weight": 7.0})
    keys = list(range(len(names)))
    return {"names": names, "lrs": optimizer._get_lrs(keys), "wds": optimizer._get_wds(keys)}


SCHEDULES = [
    ("FactorScheduler", {"step": 3, "factor": 0.5, "base_lr": 1.0, "stop_factor_lr": 0.2}),
    ("FactorScheduler", {"step": 4, "factor": 0.9, "base_lr": 0.3, "warmup_steps": 5, "warmup_begin_lr": 0.1}),
    ("MultiFactorScheduler", {"step": [2, 5, 9], "factor": 0.1, "base_lr": 1.0}),
    (
        "MultiFactorScheduler",
        {"step": [6], "factor": 0.1, "base_lr": 1.0, "warmup_steps": 4, "warmup_mode": "constant"},
    ),
    ("PolyScheduler", {"max_update": 10, "base_lr": 1.0, "pwr": 2, "final_lr": 0.1}),
    ("PolyScheduler", {"max_update": 10, "base_lr": 1.0, "warmup_steps": 3, "warmup_begin_lr": 0.2}),
    ("CosineScheduler", {"max_update": 10, "base_lr": 1.0, "final_lr": 0.1, "warmup_steps": 2}),
]


def schedules():
    logging.disable(logging.CRITICAL)
    rows = []
    for name, options in SCHEDULES:
        one = getattr(mx.lr_scheduler, name)(**options)
        rows.append({"name": name, "options": options, "rates": [one(t) for t in range(1, 15)]})
    return rows


def iterators():
    rows = []
    data = np.arange(10).reshape(5, 2)
    for handle in ("pad", "discard", "roll_over"):
        for shuffle in (False, True):
            np.random.seed(3)
            one = mx.io.NDArrayIter(
                {"b": data, "a": data + 100}, np.arange(5), 2, shuffle=shuffle, last_batch_handle=handle
            )
            epochs = []
            for _ in range(3):
                epochs.append([[b.label[0].asnumpy(), b.data[0].asnumpy(), b.pad] for b in one])
                one.reset()
            shapes = [[d.name, list(d.shape)] for d in one.provide_data + one.provide_label]
            rows.append({"handle": handle, "shuffle": shuffle, "epochs": epochs, "shapes": shapes})
    return rows


def initializers():
    arrays = {}
    for name, one, shape in [
        ("weight", mx.init.Bilinear(), (2, 1, 4, 4)),
        ("weight", mx.init.Bilinear(), (1, 2, 3, 5)),
        ("weight", mx.init.Constant(2.5), (2, 2)),
        ("weight", mx.init.LSTMBias(1.5), (8,)),
        ("weight", mx.init.One(), (3,)),
        ("weight", mx.init.Zero(), (3,)),
        ("gamma", mx.init.Uniform(), (3,)),
        ("beta", mx.init.Uniform(), (3,)),
        ("bias", mx.init.Uniform(), (3,)),
        ("running_max", mx.init.Uniform(), (3,)),
        ("running_min", mx.init.Uniform(), (3,)),
    ]:
        array = mx.nd.ones(shape) * -7
        one(mx.init.InitDesc(name), array)
        arrays[json.dumps([name, one.dumps(), shape])] = array.asnumpy()
    dumps = [
        mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2).dumps(),
        mx.init.MSRAPrelu().dumps(),
        mx.init.LSTMBias(forget_bias=2.0).dumps(),
        mx.init.Orthogonal().dumps(),
    ]
    return {"values": arrays, "dumps": dumps}


def networks():
    """Arguments, outputs and shapes of unrolled cells."""
    rows = {}
    rnn = mx.rnn

    def stack():
        one = rnn.SequentialRNNCell()
        one.add(rnn.LSTMCell(6, prefix="l0_"))
        one.add(rnn.DropoutCell(0.3))
        one.add(rnn.GRUCell(5, prefix="l1_"))
        return one

    cells = {
        "rnn": lambda: rnn.RNNCell(6),
        "lstm": lambda: rnn.LSTMCell(6),
        "gru": lambda: rnn.GRUCell(6),
        "stack": stack,
        "bi": lambda: rnn.BidirectionalCell(rnn.LSTMCell(6, prefix="f_"), rnn.GRUCell(6, prefix="b_")),
        "residual": lambda: rnn.ResidualCell(rnn.RNNCell(7)),
        "zoneout": lambda: rnn.ZoneoutCell(rnn.LSTMCell(6), 0.2, 0.3),
    }
    for name, make in cells.items():
        for layout in ("NTC", "TNC"):
            for merge in (True, False, None):
                with mx.name.NameManager():
                    data = mx.sym.Variable("data")
                    outputs, _ = make().unroll(3, data, layout=layout, merge_outputs=merge)
                    out = mx.sym.Group(outputs) if isinstance(outputs, list) else outputs
                    shapes = out.infer_shape(data=(2, 3, 7) if layout == "NTC" else (3, 2, 7))
                rows[f"{name} {layout} {merge}"] = {
                    "arguments": out.list_arguments(),
                    "outputs": out.list_outputs(),
                    "shapes": shapes,
                    "merged": not isinstance(outputs, list),
                }
    return rows


def fit():
    """The weights of an MLP after two epochs, from given ones, and what was logged."""
    rng = np.random.RandomState(5)
    x = rng.randn(40, 6).astype("float32")
    y = (x[:, 0] > 0).astype("float32") + (x[:, 1] > 0)
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(data, num_hidden=8, name="fc1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    shapes = dict(zip(net.list_arguments(), net.infer_shape(data=(10, 6))[0], strict=True))
    args = {n: mx.nd.array(rng.randn(*shapes[n]) * 0.3) for n in sorted(shapes) if n not in ("data", "softmax_label")}
    aux = {"bn_moving_mean": mx.nd.zeros((8,)), "bn_moving_var": mx.nd.ones((8,))}
    rows = {}
    for label, optimizer, params in [
        ("sgd", "sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.001}),
        ("adam", "adam", {"learning_rate": 0.02}),
        (
            "scheduled",
            "sgd",
            {"learning_rate": 0.2, "lr_scheduler": mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.2)},
        ),
    ]:
        mod = mx.mod.Module(net)
        mod.fit(
            mx.io.NDArrayIter(x, y, 10),
            optimizer=optimizer,
            optimizer_params=params,
            arg_params=args,
            aux_params=aux,
            num_epoch=2,
        )
        arg_params, aux_params = mod.get_params()
        score = mod.score(mx.io.NDArrayIter(x, y, 16), ["acc", "ce"])
        predicted = mod.predict(mx.io.NDArrayIter(x, None, 16))
        rows[label] = {
            "args": {n: v.asnumpy() for n, v in arg_params.items()},
            "aux": {n: v.asnumpy() for n, v in aux_params.items()},
            "score": score,
            "predicted": predicted.asnumpy()[:5],
            "predicted_shape": predicted.shape,
        }
    return rows


if __name__ == "__main__":
    recorded = {
        "metrics": metrics(),
        "optimizers": optimizers(),
        "multipliers": multipliers(),
        "schedules": schedules(),
        "iterators": iterators(),
        "initializers": initializers(),
        "networks": networks(),
        "fit": fit(),
    }
    with open(os.path.join(HERE, "mxnet_values.json"), "w") as file:
        json.dump(plain(recorded), file, separators=(",", ":"))
        file.write("\n")
