"""A DCGAN of two modules, one trained through the other's input gradients, in the manner of MXNet's example/gan."""

import json

import mxnet as mx
import numpy as np

BATCH, CODE = 6, 5


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def generator(ngf=4, no_bias=True, fix_gamma=True, eps=1e-5 + 1e-12):
    rand = mx.sym.Variable("rand")
    g1 = mx.sym.Deconvolution(rand, name="g1", kernel=(4, 4), num_filter=ngf * 2, no_bias=no_bias)
    gbn1 = mx.sym.BatchNorm(g1, name="gbn1", fix_gamma=fix_gamma, eps=eps)
    gact1 = mx.sym.Activation(gbn1, name="gact1", act_type="relu")
    g2 = mx.sym.Deconvolution(
        gact1, name="g2", kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=ngf, no_bias=no_bias
    )
    gbn2 = mx.sym.BatchNorm(g2, name="gbn2", fix_gamma=fix_gamma, eps=eps)
    gact2 = mx.sym.Activation(gbn2, name="gact2", act_type="relu")
    g3 = mx.sym.Deconvolution(gact2, name="g3", kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=1, no_bias=no_bias)
    return mx.sym.Activation(g3, name="gact3", act_type="tanh")


def discriminator(ndf=4, no_bias=True, fix_gamma=True, eps=1e-5 + 1e-12):
    data = mx.sym.Variable("data")
    label = mx.sym.Variable("label")
    d1 = mx.sym.Convolution(data, name="d1", kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=ndf, no_bias=no_bias)
    dact1 = mx.sym.LeakyReLU(d1, name="dact1", act_type="leaky", slope=0.2)
    d2 = mx.sym.Convolution(
        dact1, name="d2", kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=ndf * 2, no_bias=no_bias
    )
    dbn2 = mx.sym.BatchNorm(d2, name="dbn2", fix_gamma=fix_gamma, eps=eps)
    dact2 = mx.sym.LeakyReLU(dbn2, name="dact2", act_type="leaky", slope=0.2)
    d3 = mx.sym.Convolution(dact2, name="d3", kernel=(4, 4), num_filter=1, no_bias=no_bias)
    return mx.sym.LogisticRegressionOutput(data=mx.sym.Flatten(d3), label=label, name="dloss")


def facc(label, pred):
    pred, label = pred.ravel(), label.ravel()
    return ((pred > 0.5) == label).mean()


def fentropy(label, pred):
    pred, label = pred.ravel(), label.ravel()
    return -(label * np.log(pred + 1e-12) + (1.0 - label) * np.log(1.0 - pred + 1e-12)).mean()


rng = np.random.RandomState(11)
images = np.tanh(rng.randn(5 * BATCH, 1, 16, 16)).astype("float32")
codes = rng.randn(5 * BATCH, CODE, 1, 1).astype("float32")
train = mx.io.NDArrayIter(images, batch_size=BATCH)
rand = mx.io.NDArrayIter({"rand": codes}, batch_size=BATCH)
label = mx.nd.zeros((BATCH,))

gen = mx.mod.Module(symbol=generator(), data_names=("rand",), label_names=None, context=mx.cpu())
gen.bind(data_shapes=rand.provide_data)
gen.init_params(initializer=ByShape())
adam = {"learning_rate": 0.002, "wd": 0.0, "beta1": 0.5, "epsilon": 1e-5}
gen.init_optimizer(optimizer="adam", optimizer_params=adam)
dis = mx.mod.Module(symbol=discriminator(), data_names=("data",), label_names=("label",), context=mx.cpu())
dis.bind(data_shapes=train.provide_data, label_shapes=[("label", (BATCH,))], inputs_need_grad=True)
dis.init_params(initializer=ByShape())
dis.init_optimizer(optimizer="adam", optimizer_params=adam)

metrics = {name: mx.metric.CustomMetric(function) for name, function in (("facc", facc), ("fentropy", fentropy))}
generator_entropy = mx.metric.CustomMetric(fentropy)
seen = []
for batch, code in zip(train, rand):
    for metric in [*metrics.values(), generator_entropy]:
        metric.reset()
    gen.forward(code, is_train=True)
    drawn = gen.get_outputs()
    # The discriminator's gradients of a fake and of a real batch are added up.
    label[:] = 0
    dis.forward(mx.io.DataBatch(drawn, [label]), is_train=True)
    dis.backward()
    gradients = [[grad.copyto(grad.context) for grad in grads] for grads in dis._exec_group.grad_arrays]
    for metric in metrics.values():
        dis.update_metric(metric, [label])
    label[:] = 1
    batch.label = [label]
    dis.forward(batch, is_train=True)
    dis.backward()
    for grads, earlier in zip(dis._exec_group.grad_arrays, gradients):
        for grad, other in zip(grads, earlier):
            grad += other
    dis.update()
    for metric in metrics.values():
        dis.update_metric(metric, [label])
    # The generator learns from the gradients of the discriminator's inputs.
    dis.forward(mx.io.DataBatch(drawn, [label]), is_train=True)
    dis.backward()
    back = dis.get_input_grads()
    gen.backward(back)
    gen.update()
    dis.update_metric(generator_entropy, [label])
    seen.append([float(metric.get()[1]) for metric in [*metrics.values(), generator_entropy]])
    seen[-1].append(float(np.abs(back[0].asnumpy()).sum()))
arg_params, aux_params = gen.get_params()
out = {
    "names": [generator().list_arguments(), discriminator().list_arguments(), discriminator().list_auxiliary_states()],
    "shapes": [generator().infer_shape(rand=(BATCH, CODE, 1, 1)), dis.output_shapes[0][1]],
    "seen": seen,
    "generator": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(arg_params.items())},
    "states": {name: float(value.asnumpy().sum()) for name, value in sorted(aux_params.items())},
    "drawn": gen.get_outputs()[0].asnumpy()[0, 0, :2].tolist(),
}
print(json.dumps(out))
