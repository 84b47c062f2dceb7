"""Infinities and NaN: they reach only what is made of them."""

import json

import mxnet as mx
import numpy as np

IMAGE = np.arange(1, 26, dtype="float32").reshape(1, 1, 5, 5)
SOLVED = np.array([[[1, 0, 0], [4, 2, 0], [3, 5, 1]], [[2, 0, 0], [7, 1, 0], [9, 3, 4]]], "float32")


def with_value(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def run(net, **values):
    arrays = {name: mx.nd.array(value) for name, value in values.items()}
    grads = {name: mx.nd.zeros(array.shape) for name, array in arrays.items()}
    executor = net.bind(mx.cpu(), arrays, args_grad=grads)
    executor.forward(is_train=True)
    out = executor.outputs[0]
    executor.backward([mx.nd.ones(out.shape)])
    return {"out": out.asnumpy().tolist(), **{name: grad.asnumpy().tolist() for name, grad in grads.items()}}


def answers(value):
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    image = with_value(IMAGE, (0, 0, 2, 2), value)
    large = with_value(np.arange(64, dtype="float32").reshape(1, 1, 8, 8), (0, 0, 4, 4), value)
    grouped = np.concatenate([large * (k + 1) for k in range(4)], axis=1)
    regions = np.array([[0, 0, 0, 4, 4], [0, 1, 1, 3, 3], [0, 0, 0, 7, 7], [0, 4, 4, 7, 7]], "float32")
    grid = np.array([[[[-1, 1, -1.5, 0.4, 5]], [[-1, 1, 1.2, 0.4, 5]]]], "float32")
    contrib, linalg = mx.sym.contrib, mx.sym.linalg
    yield "resized", run(contrib.BilinearResize2D(x, height=3, width=3, align_corners=False), x=image)
    yield "smaller", run(contrib.BilinearResize2D(x, height=3, width=3), x=image)
    for size in ((2, 2), (3, 3), (4, 4), (5, 5)):
        yield f"means {size}", run(contrib.AdaptiveAvgPooling2D(x, output_size=size), x=image)
    pooled = {"pooled_size": (2, 2), "spatial_scale": 1.0}
    yield "regions", run(contrib.ROIAlign(x, y, sample_ratio=2, **pooled), x=large, y=regions)
    groups = {"pooled_size": 2, "group_size": 2, "output_dim": 1, "spatial_scale": 1.0}
    yield "groups", run(contrib.PSROIPooling(x, y, **groups), x=grouped, y=regions)
    for place in ((0, 0, 0, 0), (0, 0, 4, 4)):
        yield f"sampled {place}", run(mx.sym.BilinearSampler(x, y), x=with_value(IMAGE, place, value), y=grid)
    for place in ((0, 1, 0), (1, 2, 1)):
        right = with_value(np.ones((2, 3, 2), "float32"), place, value)
        yield f"solved {place}", run(linalg.trsm(x, y), x=SOLVED, y=right)
        yield f"solved, transposed {place}", run(linalg.trsm(x, y, transpose=True), x=SOLVED, y=right)
    yield "product", run(linalg.trmm(x, y), x=SOLVED, y=with_value(np.ones((2, 3, 2), "float32"), (0, 2, 1), value))


def ones():
    x = mx.sym.Variable("x")
    for size in ((1, 1), (1, 5), (3, 1), (1, 3)):
        net = mx.sym.contrib.BilinearResize2D(x, height=size[0], width=size[1], align_corners=False)
        yield f"resized to {size}", run(net, x=IMAGE)


print(
    json.dumps(
        {
            **dict(ones()),
            **{f"{value}, {name}": answer for value in (float("inf"), float("nan")) for name, answer in answers(value)},
        }
    )
)
