"""Sentences classified by convolutions, in the manner of MXNet's example/cnn_text_classification (Kim, 2014)."""

import json
import math

import mxnet as mx
import numpy as np

SENTENCE, VOCABULARY, EMBED, BATCH = 9, 20, 6, 10


def make_text_cnn(filter_list, num_filter, dropout=0.0):
    input_x = mx.sym.Variable("data")
    input_y = mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(data=input_x, input_dim=VOCABULARY, output_dim=EMBED, name="vocab_embed")
    conv_input = mx.sym.Reshape(data=embed, target_shape=(BATCH, 1, SENTENCE, EMBED))
    pooled = []
    for size in filter_list:
        conv = mx.sym.Convolution(data=conv_input, kernel=(size, EMBED), num_filter=num_filter)
        relu = mx.sym.Activation(data=conv, act_type="relu")
        pooled.append(mx.sym.Pooling(data=relu, pool_type="max", kernel=(SENTENCE - size + 1, 1), stride=(1, 1)))
    concat = mx.sym.Concat(*pooled, dim=1)
    h_pool = mx.sym.Reshape(data=concat, target_shape=(BATCH, num_filter * len(filter_list)))
    h_drop = mx.sym.Dropout(data=h_pool, p=dropout) if dropout > 0.0 else h_pool
    fc = mx.sym.FullyConnected(
        data=h_drop, weight=mx.sym.Variable("cls_weight"), bias=mx.sym.Variable("cls_bias"), num_hidden=2
    )
    return mx.sym.SoftmaxOutput(data=fc, label=input_y, name="softmax")


rng = np.random.RandomState(8)
x = rng.randint(0, VOCABULARY, (5 * BATCH, SENTENCE)).astype("float32")
y = ((x < 6).sum(axis=1) > 2).astype("float32")
net = make_text_cnn([2, 3, 4], 3)
shapes, outputs, _ = net.infer_shape(data=(BATCH, SENTENCE), softmax_label=(BATCH,))
args = [mx.nd.zeros(shape, mx.cpu()) for shape in shapes]
grads = {}
for shape, name in zip(shapes, net.list_arguments()):
    if name in ["softmax_label", "data"]:
        continue
    grads[name] = mx.nd.zeros(shape, mx.cpu())
executor = net.bind(ctx=mx.cpu(), args=args, args_grad=grads, grad_req="add")
blocks = []
arg_dict = dict(zip(net.list_arguments(), executor.arg_arrays))
for index, name in enumerate(net.list_arguments()):
    if name in ["softmax_label", "data"]:
        continue
    arg_dict[name][:] = np.random.RandomState(index).uniform(-0.4, 0.4, arg_dict[name].shape)
    blocks.append((index, arg_dict[name], grads[name], name))
optimizer = mx.optimizer.create("rmsprop")
optimizer.lr = 0.01
updater = mx.optimizer.get_updater(optimizer)
steps, norms = [], []
for begin in range(0, len(x), BATCH):
    arg_dict["data"][:] = x[begin : begin + BATCH]
    arg_dict["softmax_label"][:] = y[begin : begin + BATCH]
    executor.forward(is_train=True)
    executor.backward()
    predicted = executor.outputs[0].asnumpy()
    picked = predicted[np.arange(BATCH), y[begin : begin + BATCH].astype(int)]
    correct = int((y[begin : begin + BATCH] == predicted.argmax(axis=1)).sum())
    steps.append([float(-np.log(picked).mean()), correct])
    norm = 0
    for _, _, grad, _ in blocks:
        grad /= BATCH
        norm += mx.nd.norm(grad).asscalar() ** 2
    norm = math.sqrt(norm)
    norms.append(norm)
    for index, weight, grad, _ in blocks:
        if norm > 0.3:
            grad *= 0.3 / norm
        updater(index, grad, weight)
        grad[:] = 0.0
out = {
    "arguments": net.list_arguments(),
    "outputs": net.list_outputs(),
    "shapes": [shapes, outputs],
    "steps": steps,
    "norms": norms,
    "dropped": make_text_cnn([2], 2, 0.5).infer_shape(data=(BATCH, SENTENCE))[1],
    "weights": {name: float(weight.asnumpy().sum()) for _, weight, _, name in blocks},
}
print(json.dumps(out))
