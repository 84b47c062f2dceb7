"""Records states of optimizers as MXNet 1.9.1 writes them, and where MXNet's training goes on from them.

Run it with MXNet's Python: python tests/training/record_mxnet_states.py > tests/training/mxnet_states.json
"""

import base64
import json
import sys

import mxnet as mx
import numpy as np

CASES = [
    ["sgd", {}],
    ["sgd", {"momentum": 0.9}],
    ["sgd", {"momentum": 0.9, "multi_precision": True}],
    ["sgd", {"multi_precision": True}],
    ["nag", {"momentum": 0.9}],
    ["nag", {"momentum": 0.9, "multi_precision": True}],
    ["adam", {}],
    ["adam", {"multi_precision": True}],
    ["rmsprop", {}],
    ["rmsprop", {"centered": True}],
    ["ftrl", {}],
    ["adagrad", {}],
    ["adadelta", {}],
    ["lamb", {}],
    ["lars", {"momentum": 0.9}],
    ["lbsgd", {"momentum": 0.9}],
    ["ftml", {}],
    ["nadam", {}],
    ["adamax", {}],
    ["signum", {}],
    ["dcasgd", {}],
    ["ccsgd", {"momentum": 0.9}],
]
SCHEDULERS = [
    None,
    ["FactorScheduler", {"step": 2, "factor": 0.5, "base_lr": 0.1}],
    ["MultiFactorScheduler", {"step": [2, 4], "factor": 0.5, "base_lr": 0.1}],
    ["PolyScheduler", {"max_update": 9, "base_lr": 0.1}],
    ["CosineScheduler", {"max_update": 9, "base_lr": 0.1}],
]


def updater(name, options, scheduler):
    if scheduler is not None:
        options = {**options, "lr_scheduler": getattr(mx.lr_scheduler, scheduler[0])(**scheduler[1])}
    names = {0: "fc_weight", 1: "fc_bias"}
    # MXNet's NAG keeps another momentum where weights decay (docs/differences.md).
    decay = 0.0 if name == "nag" else 0.01
    optimizer = mx.optimizer.create(
        name, wd=decay, learning_rate=0.1, rescale_grad=0.5, param_idx2name=names, **options
    )
    return mx.optimizer.get_updater(optimizer)


def record(name, options, dump, scheduler):
    dtype = "float16" if options.get("multi_precision") else "float32"
    random = np.random.RandomState(1)
    weights = [mx.nd.array(random.rand(*shape) - 0.5, dtype=dtype) for shape in ((3, 2), (4,))]
    gradients = [[mx.nd.array(random.rand(*w.shape) - 0.5, dtype=dtype) for w in weights] for _ in range(5)]
    # Some of MXNet's optimizers scale them in place.
    steps = [[gradient.asnumpy().tolist() for gradient in step] for step in gradients[3:]]
    trained = updater(name, options, scheduler)
    for step in gradients[:3]:
        trained([0, 1], step, weights)
    states = trained.get_states(dump_optimizer=dump)
    before = [weight.asnumpy().tolist() for weight in weights]
    resumed = updater(name, options, None)
    resumed.set_states(states)
    for step in gradients[3:]:
        resumed([0, 1], step, weights)
    return {
        "name": name,
        "options": options,
        "dtype": dtype,
        "dump": dump,
        "states": base64.b64encode(states).decode(),
        "before": before,
        "gradients": steps,
        "after": [weight.asnumpy().tolist() for weight in weights],
    }


rows = []
for number, (name, options) in enumerate(CASES):
    rows.append(record(name, options, False, None))
    rows.append(record(name, options, True, SCHEDULERS[number % len(SCHEDULERS)]))
sys.stdout.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
