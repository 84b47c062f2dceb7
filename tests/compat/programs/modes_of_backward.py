"""Gradients of networks with batch normalisation, with forward and backward each in training and in inference."""

import json

import mxnet as mx
import numpy as np

SHAPE = (4, 3, 6, 6)


def networks():
    data = mx.sym.Variable("data")
    conv = mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name="conv")
    unit = mx.sym.Activation(mx.sym.BatchNorm(conv, fix_gamma=False, name="norm"), act_type="relu")
    return {
        "BatchNorm": mx.sym.BatchNorm(data, fix_gamma=False, name="norm"),
        "BatchNorm, last axis": mx.sym.BatchNorm(data, axis=-1, name="norm"),
        "BatchNorm_v1": mx.sym.BatchNorm_v1(data, fix_gamma=False, name="norm"),
        "SyncBatchNorm": mx.sym.contrib.SyncBatchNorm(data, fix_gamma=False, key="norm", name="norm"),
        "unit": mx.sym.Convolution(unit, num_filter=2, kernel=(1, 1), name="last"),
        "Dropout": mx.sym.Dropout(data, p=0.5),
    }


def gradients(net, forward, backward):
    rng = np.random.RandomState(5)
    executor = net.simple_bind(mx.cpu(), data=SHAPE)
    for array in executor.arg_arrays:
        array[:] = rng.uniform(-1, 1, array.shape)
    for array in executor.aux_arrays:
        array[:] = rng.uniform(0.5, 1, array.shape)
    executor.forward(is_train=forward)
    executor.backward([mx.nd.array(rng.uniform(-1, 1, out.shape)) for out in executor.outputs], is_train=backward)
    arrays = {**executor.grad_dict, **executor.aux_dict}
    return {
        name: [float(array.sum().asscalar()), float((array * array).sum().asscalar())] for name, array in arrays.items()
    }


def undefined(name, forward, backward):
    """MXNet reads memory that forward has not written, or draws."""
    if name == "Dropout":
        return forward
    return name in ("BatchNorm_v1", "SyncBatchNorm") and backward and not forward


print(
    json.dumps(
        {
            f"{name}, forward {forward}, backward {backward}": gradients(net, forward, backward)
            for name, net in networks().items()
            for forward in (False, True)
            for backward in (False, True)
            if not undefined(name, forward, backward)
        }
    )
)
