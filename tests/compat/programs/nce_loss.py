"""Words embedded by noise contrastive estimation, in the manner of MXNet's example/nce-loss."""

import json

import mxnet as mx
import numpy as np

VOCABULARY, EMBED, CONTEXT, LABELS, BATCH = 30, 6, 4, 5, 12


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[1]).uniform(-0.5, 0.5, arr.shape)


class NceAuc(mx.metric.EvalMetric):
    """The area under the curve of true words among noise."""

    def __init__(self):
        super(NceAuc, self).__init__("nce-auc")

    def update(self, labels, preds):
        target = labels[1].asnumpy().flatten()
        pred = preds[0].asnumpy().flatten()
        order = np.argsort(-pred, kind="stable")
        hits = (target[order] > 0).astype(float)
        positive, negative = hits.sum(), (1 - hits).sum()
        self.sum_metric += float((np.cumsum(hits) * (1 - hits)).sum() / (positive * negative))
        self.num_inst += 1


def nce_loss(data, label, label_weight, embed_weight, vocab_size, num_hidden):
    label_embed = mx.sym.Embedding(
        data=label, input_dim=vocab_size, weight=embed_weight, output_dim=num_hidden, name="label_embed"
    )
    data = mx.sym.Reshape(data=data, shape=(-1, 1, num_hidden))
    pred = mx.sym.broadcast_mul(data, label_embed)
    pred = mx.sym.sum(data=pred, axis=2)
    return mx.sym.LogisticRegressionOutput(data=pred, label=label_weight)


def word2vec():
    data, label, label_weight = (mx.sym.Variable(name) for name in ("data", "label", "label_weight"))
    embed_weight = mx.sym.Variable("embed_weight")  # of contexts and of words
    embed = mx.sym.Embedding(data=data, input_dim=VOCABULARY, weight=embed_weight, output_dim=EMBED, name="data_embed")
    parts = mx.sym.SliceChannel(data=embed, num_outputs=CONTEXT, squeeze_axis=1, name="data_slice")
    pred = parts[0]
    for index in range(1, CONTEXT):
        pred = pred + parts[index]
    return nce_loss(pred, label, label_weight, embed_weight, VOCABULARY, EMBED)


rng = np.random.RandomState(12)
count = 6 * BATCH
contexts = rng.randint(0, VOCABULARY, (count, CONTEXT))
words = (contexts.sum(axis=1) // CONTEXT)[:, None]
label = np.concatenate([words, rng.randint(0, VOCABULARY, (count, LABELS - 1))], axis=1)
weight = np.zeros((count, LABELS))
weight[:, 0] = 1
train = mx.io.NDArrayIter(
    {"data": contexts.astype("float32")},
    {"label": label.astype("float32"), "label_weight": weight.astype("float32")},
    BATCH,
)
net = word2vec()
seen = []
module = mx.mod.Module(symbol=net, context=mx.cpu(), data_names=["data"], label_names=["label", "label_weight"])
module.fit(
    train_data=train,
    num_epoch=2,
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.3, "momentum": 0.9, "wd": 0.0000},
    initializer=ByShape(),
    eval_metric=NceAuc(),
    batch_end_callback=lambda param: seen.append(float(param.eval_metric.get()[1])),
)
vectors = module.get_params()[0]["embed_weight"]
unit = mx.nd.L2Normalization(vectors)
similar = mx.nd.dot(unit, unit, transpose_b=True).asnumpy()
out = {
    "arguments": net.list_arguments(),
    "outputs": net.list_outputs(),
    "shapes": net.infer_shape(data=(BATCH, CONTEXT), label=(BATCH, LABELS), label_weight=(BATCH, LABELS)),
    "seen": seen,
    "vectors": vectors.asnumpy()[:4].tolist(),
    "similar": similar[0, :6].tolist(),
}
print(json.dumps(out))
