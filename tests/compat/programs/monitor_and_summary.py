"""A training looked into, in the manner of MXNet's tutorials on monitors, callbacks, attributes and visualisation."""

import json
import logging

import mxnet as mx
import numpy as np

BATCH = 10


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


class Lines(logging.Handler):
    """What a program logs, for it to look at."""

    def __init__(self):
        super(Lines, self).__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def network():
    with mx.AttrScope(ctx_group="stage1", lr_mult="0.5"), mx.name.Prefix("first_"):
        net = mx.sym.FullyConnected(mx.sym.Variable("data", lr_mult=1), num_hidden=8)
        net = mx.sym.Activation(net, act_type="relu")
    with mx.AttrScope(ctx_group="stage2"):
        net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2", attr={"wd_mult": "0"})
        net = mx.sym.BatchNorm(net, name="bn", momentum=0.8)
    return mx.sym.SoftmaxOutput(net, name="softmax")


rng = np.random.RandomState(39)
x = rng.randn(5 * BATCH, 6).astype("float32")
y = x[:, :3].argmax(axis=1).astype("float32")
net = network()
out = {
    "names": [net.list_arguments(), net.list_auxiliary_states(), net.get_internals().list_outputs()],
    "attributes": {name: dict(sorted(attrs.items())) for name, attrs in sorted(net.attr_dict().items())},
    "children": net.get_children().list_outputs(),
    "one": [net.attr("ctx_group"), net.get_internals()["fc2_output"].attr("ctx_group")],
}


def norm(array):
    return mx.nd.norm(array) / np.sqrt(array.size)


# A monitor's tables, of every second batch; of forward alone.
monitor = mx.mon.Monitor(2, norm, pattern=".*weight|.*output|softmax.*", sort=True)
module = mx.mod.Module(net, context=mx.cpu())
train = mx.io.NDArrayIter(x, y, BATCH)
module.bind(train.provide_data, train.provide_label)
module.install_monitor(monitor)
module.init_params(ByShape())
module.init_optimizer(
    optimizer_params={
        "learning_rate": 0.3,
        "lr_scheduler": mx.lr_scheduler.CosineScheduler(8, 0.3, 0.01, warmup_steps=2),
    }
)
tables, losses = [], []
for batch in train:
    monitor.tic()
    module.forward_backward(batch)
    metric = mx.metric.CrossEntropy()
    module.update_metric(metric, batch.label)
    losses.append(float(metric.get()[1]))
    module.update()
    table = monitor.toc()
    tables.append(sorted([step, name, float(value.split()[0])] for step, name, value in table if name[0] != "_"))
out["losses"] = losses
out["monitored"] = [[row for row in table if "backward" not in row[1]] for table in tables]
out["rates"] = [module._optimizer.learning_rate, module._optimizer.num_update]

# What fit logs, without the numbers of time.
logger = logging.getLogger("training")
logger.setLevel(logging.INFO)
logger.propagate = False
lines = Lines()
logger.addHandler(lines)
train.reset()
again = mx.mod.Module(net, context=mx.cpu(), logger=logger)
again.fit(
    train,
    eval_data=train,
    eval_metric="acc",
    num_epoch=2,
    initializer=ByShape(),
    optimizer_params={"learning_rate": 0.1},
    epoch_end_callback=mx.callback.module_checkpoint(again, "looked", 2),
)
out["logged"] = [line for line in lines.lines if "Time cost" not in line]
out["saved"] = sorted(mx.nd.load("looked-0002.params"))

# The executor's own callback.
shown = []
executor = net.simple_bind(mx.cpu(), data=(BATCH, 6))
executor.copy_params_from(*again.get_params())
executor.set_monitor_callback(lambda name, array: shown.append(name if isinstance(name, str) else name.decode()))
executor.forward(is_train=False, data=mx.nd.array(x[:BATCH]))
executor.outputs[0].wait_to_read()
out["shown"] = shown
out["executor"] = [sorted(executor.arg_dict), sorted(executor.aux_dict), list(executor.output_dict)]
print(json.dumps(out))
