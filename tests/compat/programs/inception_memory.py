"""What an Inception network needs, in the manner of MXNet's example/memcost: mirroring, debug_str, grad_req."""

import json
import re

import mxnet as mx
import numpy as np

BATCH = 6


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def conv_factory(data, num_filter, kernel, stride=(1, 1), pad=(0, 0), name=None, mirror_attr=None):
    conv = mx.symbol.Convolution(
        data=data, num_filter=num_filter, kernel=kernel, stride=stride, pad=pad, name=f"conv_{name}"
    )
    bn = mx.symbol.BatchNorm(data=conv, name=f"bn_{name}", attr=mirror_attr)
    return mx.symbol.Activation(data=bn, act_type="relu", name=f"relu_{name}", attr=mirror_attr)


def downsample_factory(data, ch_3x3, name, mirror_attr):
    conv = conv_factory(data, ch_3x3, (3, 3), (2, 2), (1, 1), name + "_conv", mirror_attr)
    pool = mx.symbol.Pooling(
        data=data, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name=name + "_pool", attr=mirror_attr
    )
    return mx.symbol.Concat(conv, pool, name=name)


def simple_factory(data, ch_1x1, ch_3x3, name, mirror_attr):
    conv1x1 = conv_factory(data, ch_1x1, (1, 1), name=name + "_1x1", mirror_attr=mirror_attr)
    conv3x3 = conv_factory(data, ch_3x3, (3, 3), pad=(1, 1), name=name + "_3x3", mirror_attr=mirror_attr)
    return mx.symbol.Concat(conv1x1, conv3x3, name=name)


def network(force_mirroring):
    attr = {"force_mirroring": "true"} if force_mirroring else {}
    data = mx.symbol.Variable(name="data")
    net = conv_factory(data, 4, (3, 3), pad=(1, 1), name="1", mirror_attr=attr)
    net = simple_factory(net, 3, 3, "in3a", attr)
    net = downsample_factory(net, 4, "in3b", attr)
    net = simple_factory(net, 4, 4, "in4a", attr)
    pool = mx.symbol.Pooling(data=net, pool_type="avg", kernel=(4, 4), name="global_pool", attr=attr)
    fc1 = mx.symbol.FullyConnected(
        data=mx.symbol.Flatten(data=pool, name="flatten1", attr=attr), num_hidden=3, name="fc1"
    )
    return mx.symbol.SoftmaxOutput(data=fc1, name="softmax")


def cost(net, **arguments):
    """Whether debug_str tells megabytes, whose number no two implementations share."""
    text = net.simple_bind(mx.cpu(), data=(BATCH, 2, 8, 8), **arguments).debug_str()
    last = text.splitlines()[-2:]
    return [
        bool(re.fullmatch(r"Total \d+ MB allocated", last[0])),
        bool(re.fullmatch(r"Total \d+ TempSpace resource requested", last[1])),
    ]


def train(net):
    module = mx.mod.Module(net, context=mx.cpu())
    batches = mx.io.NDArrayIter(x, y, BATCH)
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(ByShape())
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    losses = []
    for batch in batches:
        module.forward_backward(batch)
        metric = mx.metric.CrossEntropy()
        module.update_metric(metric, batch.label)
        losses.append(float(metric.get()[1]))
        module.update()
    args, aux = module.get_params()
    return losses, {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted({**args, **aux}.items())}


rng = np.random.RandomState(18)
y = rng.randint(0, 3, 5 * BATCH).astype("float32")
x = (rng.rand(3, 2, 8, 8)[y.astype(int)] + 0.2 * rng.randn(5 * BATCH, 2, 8, 8)).astype("float32")
plain, mirrored = network(False), network(True)
again = mx.sym.load_json(mirrored.tojson())
out = {
    "names": [plain.list_arguments(), plain.get_internals().list_outputs()],
    "shapes": plain.infer_shape(data=(BATCH, 2, 8, 8)),
    "mirrored": sorted(name for name, attrs in again.attr_dict().items() if "force_mirroring" in str(attrs)),
    "costs": [cost(plain), cost(mirrored), cost(plain, grad_req="null")],
    "plain": train(plain),
    "with_mirrors": train(again),
}
print(json.dumps(out))
