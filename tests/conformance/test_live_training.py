"""Loss curves of short trainings beside MXNet's: the same start, batches and updates, by one function.

Rounding differs, and grows from step to step; the curves of one training part in the end. So it is the mean over some
trainings that has to be equal, and each training's first steps. The images are MNIST's test images where OPBOX_MNIST
names their folder, and otherwise drawn: a pattern for each class, in noise.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox
from opbox.io import read_idx
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape

from .mxnet import Oracle
from .test_live_networks import weights
from .training import losses

pytestmark = pytest.mark.conformance

SEEDS, STEPS, BATCH, CLASSES = 3, 40, 32, 10
FIRST = 5
"""Steps in which rounding has not grown yet."""
SETTLED = 10
"""Steps at the end whose mean is compared: losses of single steps scatter by a tenth with the batch."""


def lenet() -> Any:
    """LeNet with tanh, as MXNet's examples have it."""
    mx, x = opbox, opbox.sym.Variable("data")
    for i, filters in enumerate((20, 50), 1):
        x = mx.sym.Convolution(x, kernel=(5, 5), num_filter=filters, name=f"conv{i}")
        x = mx.sym.Activation(x, act_type="tanh", name=f"tanh{i}")
        x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{i}")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=500, name="fc1")
    x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="tanh", name="tanh3"), num_hidden=CLASSES, name="fc2")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def resnet() -> Any:
    """Three units of BatchNorm, ReLU and two convolutions, the second and third at half the size."""
    mx = opbox

    def convolved(x: Any, name: str, filters: int, kernel: int = 3, stride: int = 1) -> Any:
        attrs = {"stride": (stride, stride), "pad": (kernel // 2, kernel // 2), "num_filter": filters}
        return mx.sym.Convolution(x, kernel=(kernel, kernel), no_bias=True, name=name, **attrs)

    def normal(x: Any, name: str) -> Any:
        norm = mx.sym.BatchNorm(x, fix_gamma=False, eps=2e-5, name=f"{name}_norm")
        return mx.sym.Activation(norm, act_type="relu", name=f"{name}_relu")

    x = convolved(mx.sym.Variable("data"), "first", 16)
    for unit, (filters, stride) in enumerate(((16, 1), (32, 2), (64, 2))):
        y = first = normal(x, f"unit{unit}_a")
        y = normal(convolved(y, f"unit{unit}_conv1", filters, 3, stride), f"unit{unit}_b")
        y = convolved(y, f"unit{unit}_conv2", filters)
        x = y + (x if unit == 0 else convolved(first, f"unit{unit}_shortcut", filters, 1, stride))
    x = mx.sym.Pooling(normal(x, "last"), kernel=(7, 7), global_pool=True, pool_type="avg", name="pool")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=CLASSES, name="fc"), name="softmax")


def batches(seed: int) -> tuple[Any, Any]:
    """Images (steps, batch, 1, 28, 28) and their classes."""
    rng = np.random.RandomState(seed)
    folder = os.environ.get("OPBOX_MNIST")
    if folder:
        images, classes = (read_idx(Path(folder) / f"t10k-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        chosen = rng.permutation(len(images))[: STEPS * BATCH]
        data, labels = images[chosen] / np.float32(255), classes[chosen]
    else:
        labels = rng.randint(0, CLASSES, STEPS * BATCH)
        patterns = np.random.RandomState(0).normal(0, 1, (CLASSES, 28, 28))
        data = (patterns[labels] + rng.normal(0, 0.5, (STEPS * BATCH, 28, 28))) / 3
    shape = (STEPS, BATCH, 1, 28, 28)
    return data.astype(np.float32).reshape(shape), labels.astype(np.float32).reshape(STEPS, BATCH)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("build", [lenet, resnet])
def test_loss_curves(oracle: Oracle, build: Any) -> None:
    symbol = build()
    text = symbol.tojson()
    graph = load(json.loads(text))
    inferred = infer_shape(graph, {"data": (BATCH, 1, 28, 28)})
    mine, theirs = [], []
    for seed in range(SEEDS):
        values = weights(graph.argument_names, inferred.arg_shapes, CLASSES, seed)
        values |= weights(graph.auxiliary_names, inferred.aux_shapes, CLASSES, seed)
        values = {name: array for name, array in values.items() if name not in ("data", "softmax_label")}
        data, labels = batches(seed)
        mine.append(losses(opbox, text, values, data, labels))
        arrays = {f"arg:{name}": array for name, array in values.items()}
        theirs.append(oracle.ask("train", {**arrays, "data": data, "labels": labels}, json=text)[1]["losses"])
    ours, reference = np.array(mine), np.array(theirs)
    means = ours.mean(axis=0), reference.mean(axis=0)
    ends = [float(mean[-SETTLED:].mean()) for mean in means]
    print(
        f"{build.__name__}: mean loss of the first step {means[0][0]:.4f} and {means[1][0]:.4f}, of the last {SETTLED}"
    )
    print(f"  {ends[0]:.4f} and {ends[1]:.4f}; furthest apart {np.abs(means[0] - means[1]).max():.1e} in the mean,")
    print(f"  {np.abs(ours - reference).max():.1e} in one training, in its first steps")
    print(f"  {np.abs(ours - reference)[:, :FIRST].max():.1e}")
    assert ends[1] < 0.9 * means[1][0], "the network learns"
    np.testing.assert_allclose(ours[:, :FIRST], reference[:, :FIRST], rtol=1e-3)
    np.testing.assert_allclose(ends[0], ends[1], rtol=0.03)
