"""A language model of LSTM cells over buckets of sentences, in the manner of MXNet's example/rnn/bucketing."""

import json

import mxnet as mx
import numpy as np

TEXT = "a cat sat|the cat|a dog ran|dogs run|the dog sat|cats|a cat ran|the end|it ran|a dog sat|cats run|it sat"
BUCKETS, BATCH, HIDDEN = [4, 8, 12], 2, 8


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


sentences, vocabulary = mx.rnn.encode_sentences(
    [list(line) for line in TEXT.split("|")], start_label=1, invalid_label=0
)
np.random.seed(3)
import random  # noqa: E402

random.seed(3)
train = mx.rnn.BucketSentenceIter(sentences, BATCH, buckets=BUCKETS, invalid_label=0)

stack = mx.rnn.SequentialRNNCell()
for index in range(2):
    stack.add(mx.rnn.LSTMCell(num_hidden=HIDDEN, prefix=f"lstm_l{index}_"))


def sym_gen(seq_len):
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(data=data, input_dim=len(vocabulary), output_dim=6, name="embed")
    stack.reset()
    outputs, _ = stack.unroll(seq_len, inputs=embed, merge_outputs=True)
    pred = mx.sym.Reshape(outputs, shape=(-1, HIDDEN))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=len(vocabulary), name="pred")
    label = mx.sym.Reshape(label, shape=(-1,))
    pred = mx.sym.SoftmaxOutput(data=pred, label=label, use_ignore=True, ignore_label=0, name="softmax")
    return pred, ("data",), ("softmax_label",)


model = mx.mod.BucketingModule(sym_gen, default_bucket_key=train.default_bucket_key, context=mx.cpu())
seen = []
model.fit(
    train_data=train,
    eval_metric=mx.metric.Perplexity(0),
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.5, "momentum": 0.9, "wd": 1e-5, "clip_gradient": 5},
    initializer=ByShape(),
    num_epoch=2,
    batch_end_callback=lambda param: seen.append(
        [param.locals["data_batch"].bucket_key, float(param.eval_metric.get()[1])]
    ),
    epoch_end_callback=mx.rnn.do_rnn_checkpoint(stack, "char", 1),
)
symbol, arg_params, aux_params = mx.rnn.load_rnn_checkpoint(stack, "char", 2)
unpacked = stack.unpack_weights(arg_params)
net, _, _ = sym_gen(4)
out = {
    "vocabulary": sorted((key, value) for key, value in vocabulary.items()),
    "buckets": [len(rows) for rows in train.data],
    "seen": seen,
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, 4), softmax_label=(BATCH, 4)),
    "params": {name: float(value.asnumpy().sum()) for name, value in sorted(arg_params.items())},
    "unpacked": {name: list(value.shape) for name, value in sorted(unpacked.items())},
    "scores": [[name, float(value)] for name, value in model.score(train, mx.metric.Perplexity(0))],
}
print(json.dumps(out))
