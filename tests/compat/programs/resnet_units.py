"""Residual and highway units with BatchNorm, in the manner of symbols/resnet.py: score, predict, iter_predict."""

import json

import mxnet as mx
import numpy as np

BATCH = 8


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def residual_unit(data, num_filter, stride, dim_match, name, bn_mom=0.9):
    bn1 = mx.sym.BatchNorm(data=data, fix_gamma=False, eps=2e-5, momentum=bn_mom, name=name + "_bn1")
    act1 = mx.sym.Activation(data=bn1, act_type="relu", name=name + "_relu1")
    conv1 = mx.sym.Convolution(
        data=act1, num_filter=num_filter, kernel=(3, 3), stride=stride, pad=(1, 1), no_bias=True, name=name + "_conv1"
    )
    bn2 = mx.sym.BatchNorm(data=conv1, fix_gamma=False, eps=2e-5, momentum=bn_mom, name=name + "_bn2")
    act2 = mx.sym.Activation(data=bn2, act_type="relu", name=name + "_relu2")
    conv2 = mx.sym.Convolution(
        data=act2, num_filter=num_filter, kernel=(3, 3), pad=(1, 1), no_bias=True, name=name + "_conv2"
    )
    if dim_match:
        shortcut = data
    else:
        shortcut = mx.sym.Convolution(
            data=act1, num_filter=num_filter, kernel=(1, 1), stride=stride, no_bias=True, name=name + "_sc"
        )
    shortcut._set_attr(mirror_stage="True")
    return conv2 + shortcut


def highway(data, size, name):
    gate = mx.sym.FullyConnected(data, num_hidden=size, name=name + "_gate")
    gate = mx.sym.Activation(gate, act_type="sigmoid")
    new = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=size, name=name + "_new"), act_type="tanh")
    return gate * new + (1 - gate) * data


def resnet(classes):
    data = mx.sym.Variable(name="data")
    body = mx.sym.BatchNorm(data=data, fix_gamma=True, eps=2e-5, momentum=0.9, name="bn_data")
    body = mx.sym.Convolution(data=body, num_filter=4, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv0")
    body = residual_unit(body, 4, (1, 1), True, "stage1_unit1")
    body = residual_unit(body, 6, (2, 2), False, "stage2_unit1")
    bn1 = mx.sym.BatchNorm(data=body, fix_gamma=False, eps=2e-5, momentum=0.9, name="bn1")
    relu1 = mx.sym.Activation(data=bn1, act_type="relu", name="relu1")
    pool1 = mx.sym.Pooling(data=relu1, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    flat = highway(mx.sym.Flatten(data=pool1), 6, "high")
    fc1 = mx.sym.FullyConnected(data=flat, num_hidden=classes, name="fc1")
    return mx.sym.SoftmaxOutput(data=fc1, name="softmax")


rng = np.random.RandomState(17)
prototypes = rng.rand(3, 3, 8, 8)
y = rng.randint(0, 3, 44).astype("float32")
x = (prototypes[y.astype(int)] + 0.2 * rng.randn(44, 3, 8, 8)).astype("float32")
net = resnet(3)
train = mx.io.NDArrayIter(x, y, BATCH, last_batch_handle="discard")
module = mx.mod.Module(net, context=mx.cpu())
module.bind(train.provide_data, train.provide_label)
module.init_params(ByShape())
module.init_optimizer(
    optimizer="nag", optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.0001, "rescale_grad": 1.0 / BATCH}
)
metric = mx.metric.create(["ce", "acc"])
steps = []
for batch in train:
    module.forward(batch)
    metric.reset()
    module.update_metric(metric, batch.label)
    module.backward()
    module.update()
    steps.append([float(value) for value in metric.get()[1]])
args, aux = module.get_params()
whole = mx.io.NDArrayIter(x, y, BATCH)  # 44 images: the last batch has a pad of 4
rows = [
    [index, [list(output.shape) for output in outputs], batch.pad]
    for outputs, index, batch in module.iter_predict(whole)
]
predicted = module.predict(whole)
apart = module.predict(whole, merge_batches=False, num_batch=2)
scored = []
score = module.score(
    whole,
    ["acc", "ce"],
    num_batch=4,
    batch_end_callback=lambda param: scored.append([param.nbatch, float(param.eval_metric.get()[1][1])]),
)
out = {
    "names": [net.list_arguments(), net.list_auxiliary_states()],
    "shapes": net.infer_shape(data=(BATCH, 3, 8, 8)),
    "steps": steps,
    "args": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(args.items())},
    "aux": {name: float(value.asnumpy().sum()) for name, value in sorted(aux.items())},
    "rows": rows,
    "predicted": [list(predicted.shape), predicted.asnumpy()[-3:].tolist()],
    "apart": [len(apart), [list(output.shape) for outputs in apart for output in outputs]],
    "score": [scored, [[name, float(value)] for name, value in score]],
    "mirrored": sorted(name for name, attrs in net.attr_dict().items() if attrs.get("mirror_stage") == "True"),
}
print(json.dumps(out))
