"""Two branches that share their weights and a contrastive loss, in the manner of siamese and triplet networks' code."""

import json

import mxnet as mx
import numpy as np

BATCH = 8


class Near(mx.init.Initializer):
    """Weights that their shape decides; biases by a pattern of names."""

    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0]).uniform(-0.4, 0.4, arr.shape)


WEIGHTS = {name: mx.sym.Variable(name) for name in ("conv_weight", "conv_bias", "fc_weight", "fc_bias")}


def branch(data, name):
    net = mx.sym.Convolution(
        data, weight=WEIGHTS["conv_weight"], bias=WEIGHTS["conv_bias"], kernel=(3, 3), num_filter=4, name=name + "_conv"
    )
    net = mx.sym.LeakyReLU(net, act_type="leaky", slope=0.1)
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.FullyConnected(
        net, weight=WEIGHTS["fc_weight"], bias=WEIGHTS["fc_bias"], num_hidden=5, name=name + "_fc"
    )
    return mx.sym.L2Normalization(net, name=name + "_unit")


def contrastive(margin=1.0):
    left, right = branch(mx.sym.Variable("left"), "left"), branch(mx.sym.Variable("right"), "right")
    same = mx.sym.Variable("same")
    distance = mx.sym.sqrt(mx.sym.sum(mx.sym.square(left - right), axis=1) + 1e-6)
    apart = mx.sym.square(mx.sym.maximum(margin - distance, 0))
    loss = mx.sym.MakeLoss(
        0.5 * (same * mx.sym.square(distance) + (1 - same) * apart), normalization="batch", name="loss"
    )
    return mx.sym.Group([loss, mx.sym.BlockGrad(distance, name="distance")])


def triplet(margin=0.5):
    anchor, positive, negative = (branch(mx.sym.Variable(name), name) for name in ("anchor", "positive", "negative"))
    near = mx.sym.sum((anchor - positive) ** 2, axis=1)
    far = mx.sym.sum((anchor - negative) ** 2, axis=1)
    return mx.sym.MakeLoss(mx.sym.Activation(near - far + margin, act_type="relu"), name="triplet")


class PairMetric(mx.metric.EvalMetric):
    def __init__(self, **kwargs):
        super(PairMetric, self).__init__("pairs", output_names=["distance_output"], label_names=["same"], **kwargs)

    def update(self, labels, preds):
        (same,), (distance,) = labels, preds
        self.sum_metric += float(((distance.asnumpy() < 0.5) == (same.asnumpy() > 0)).sum())
        self.num_inst += len(same)


def steps_of(module, batches, rate):
    module.bind(batches.provide_data, batches.provide_label or None)
    module.init_params(Near())
    module.init_optimizer(optimizer_params={"learning_rate": rate, "momentum": 0.9, "rescale_grad": 1.0})
    losses = []
    for batch in batches:
        module.forward_backward(batch)
        losses.append(float(module.get_outputs()[0].asnumpy().mean()))
        module.update()
    return losses


rng = np.random.RandomState(36)
prototypes = rng.rand(4, 1, 8, 8)


def draw(kinds):
    return (prototypes[kinds] + 0.1 * rng.randn(len(kinds), 1, 8, 8)).astype("float32")


first = rng.randint(0, 4, 5 * BATCH)
second = np.where(rng.rand(5 * BATCH) < 0.5, first, rng.randint(0, 4, 5 * BATCH))
same = (first == second).astype("float32")
net = contrastive()
pairs = mx.io.NDArrayIter({"left": draw(first), "right": draw(second)}, {"same": same}, BATCH)
module = mx.mod.Module(net, data_names=["left", "right"], label_names=["same"], context=mx.cpu())
losses = steps_of(module, pairs, 0.2)
params = module.get_params()[0]
out = {
    "contrastive": {
        "arguments": net.list_arguments(),
        "shapes": net.infer_shape(left=(BATCH, 1, 8, 8), right=(BATCH, 1, 8, 8), same=(BATCH,)),
        "losses": losses,
        "score": [[name, float(value)] for name, value in module.score(pairs, PairMetric())],
        "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(params.items())},
    }
}
net = triplet()
triples = mx.io.NDArrayIter(
    {"anchor": draw(first), "positive": draw(first), "negative": draw((first + 1) % 4)}, batch_size=BATCH
)
module = mx.mod.Module(net, data_names=["anchor", "positive", "negative"], label_names=None, context=mx.cpu())
out["triplet"] = [net.list_arguments(), steps_of(module, triples, 0.02)]

# One branch alone gives the embedding.
alone = mx.mod.Module(branch(mx.sym.Variable("data"), "one"), label_names=None, context=mx.cpu())
alone.bind([("data", (4, 1, 8, 8))], for_training=False)
alone.init_params(arg_params=params, aux_params={})
alone.forward(mx.io.DataBatch([mx.nd.array(prototypes)]))
unit = alone.get_outputs()[0]
out["similar"] = mx.nd.dot(unit, unit.T).asnumpy().tolist()
print(json.dumps(out))
