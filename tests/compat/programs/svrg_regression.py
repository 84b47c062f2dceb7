"""Regression by gradients of less variance, in the manner of MXNet's example/svrg_module: fit, and a loop by hand."""

import importlib
import json

import mxnet as mx
import numpy as np

SVRGModule = importlib.import_module(mx.__name__ + ".contrib.svrg_optimization.svrg_module").SVRGModule


def net():
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=6, name="fc1"), act_type="tanh")
    out = mx.sym.FullyConnected(hidden, num_hidden=1, name="fc2")
    return mx.sym.LinearRegressionOutput(out, mx.sym.Variable("lin_reg_label"), name="lro")


def iterator():
    draw = np.random.RandomState(3)
    data = draw.uniform(-1, 1, (22, 4)).astype("float32")
    label = (data.dot([1.0, -2.0, 0.5, 1.5]) + data[:, 0] * data[:, 1]).astype("float32")
    return mx.io.NDArrayIter(data, label, batch_size=6, label_name="lin_reg_label")


def weights(symbol):
    shapes, _, _ = symbol.infer_shape(data=(6, 4), lin_reg_label=(6,))
    draw = np.random.RandomState(5)
    return {
        name: mx.nd.array(draw.uniform(-0.5, 0.5, shape))
        for name, shape in zip(symbol.list_arguments(), shapes)
        if name.startswith("fc")
    }


def fitted(contexts, update_freq, optimizer, params, kvstore="local"):
    module = SVRGModule(
        net(), data_names=["data"], label_names=["lin_reg_label"], context=contexts, update_freq=update_freq
    )
    losses = []
    module.fit(
        iterator(),
        eval_metric="mse",
        kvstore=kvstore,
        optimizer=optimizer,
        optimizer_params=params,
        arg_params=weights(module.symbol),
        num_epoch=5,
        batch_end_callback=lambda param: losses.append(param.eval_metric.get()[1]),
    )
    return {"losses": losses, "fc2_weight": module.get_params()[0]["fc2_weight"].asnumpy().tolist()}


def by_hand():
    module = SVRGModule(net(), data_names=["data"], label_names=["lin_reg_label"], update_freq=1)
    train = iterator()
    module.bind(train.provide_data, train.provide_label)
    module.init_params(arg_params=weights(module.symbol))
    module.init_optimizer(kvstore=None, optimizer="sgd", optimizer_params=(("learning_rate", 0.05),))
    module.update_full_grads(train)
    full = {name: value.asnumpy().tolist() for name, value in sorted(module._param_dict[0].items())}
    train.reset()
    for batch in train:
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
    return {"full": full, "outputs": module.get_outputs()[0].asnumpy().tolist()}


def refused():
    errors = []
    for update_freq in (0, -2, None, "1", 1.5):
        try:
            SVRGModule(net(), label_names=["lin_reg_label"], update_freq=update_freq)
        except (TypeError, ValueError) as error:
            errors.append(type(error).__name__)
    return errors


print(
    json.dumps(
        {
            "sgd": fitted(mx.cpu(), 2, "sgd", (("learning_rate", 0.05),)),
            "momentum": fitted(mx.cpu(), 1, "sgd", {"learning_rate": 0.02, "momentum": 0.9, "wd": 0.01}),
            "contexts": fitted([mx.cpu(0), mx.cpu(1)], 1, "adam", {"learning_rate": 0.01}, None),
            "by hand": by_hand(),
            "refused": refused(),
        }
    )
)
