"""Steps of many weights by an optimizer: a launch or two on a GPU, with the numbers of a launch each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.cuda.updates import CHUNK

from .spy import watched

SHAPES = [(3, 5), (CHUNK + 7,), (1,), (2, CHUNK), *[(4, 3)] * 90]
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "wd": 0.01},
    "sgd with momentum": {"learning_rate": 0.1, "momentum": 0.9, "clip_gradient": 0.5},
    "adam": {"learning_rate": 0.01, "wd": 0.1},
    "nag": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "signum": {"learning_rate": 0.1, "momentum": 0.9, "wd_lh": 0.01},
    "rmsprop": {"learning_rate": 0.01, "clip_weights": 0.5},
    "rmsprop centered": {"learning_rate": 0.01, "centered": True, "wd": 0.1},
    "ftrl": {"learning_rate": 0.1, "wd": 0.1},
}


def updated(name: str, dtype: str, *, together: bool) -> tuple[list[Any], dict[str, int]]:
    """Weights after two steps, and what the second did to the device."""
    rng = np.random.default_rng(0)
    draw = lambda shape: mx.nd.array(rng.normal(size=shape).astype(dtype), ctx=mx.gpu(0), dtype=dtype)  # noqa: E731
    weights, grads = [draw(shape) for shape in SHAPES], [draw(shape) for shape in SHAPES]
    settings = {"rescale_grad": 0.5, **OPTIMIZERS[name]}
    updater = mx.optimizer.get_updater(mx.optimizer.create(name.split()[0], **settings))
    for _ in range(2):
        mx.nd.waitall()
        with watched() as watch:
            if together:
                updater(list(range(len(SHAPES))), grads, weights)
            else:
                for k, (grad, weight) in enumerate(zip(grads, weights, strict=True)):
                    updater(k, grad, weight)
            mx.nd.waitall()
    return [weight.asnumpy() for weight in weights], dict(watch.calls)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_launch_takes_the_steps_of_many_weights(gpu: Any, name: str, dtype: str) -> None:
    results, calls = updated(name, dtype, together=True)
    expected, single = updated(name, dtype, together=False)
    # A table has room for some eighty weights with a state, and a hundred without.
    assert (calls["launch"], single["launch"]) == (1 if name == "sgd" else 2, len(SHAPES))
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(("name", "states"), [("rmsprop_update", 1), ("rmspropalex_update", 3)])
def test_new_weights_are_limited_as_on_the_cpu(gpu: Any, name: str, states: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(4, 5)).astype("f") for _ in range(2 + states)]
    arrays[2] += 20  # a mean of squares, greater than the square of a mean
    outs = []
    for context in (mx.cpu(), mx.gpu(0)):
        weight, *others = [mx.nd.array(array, ctx=context) for array in arrays]
        getattr(mx.nd, name)(weight, *others, lr=0.1, clip_weights=0.5, out=weight)
        outs.append(weight.asnumpy())
    assert (np.abs(outs[0]) == 0.5).any()
    np.testing.assert_allclose(outs[1], outs[0], rtol=1e-5)  # roundings of float32


def test_copies_in_single_precision(gpu: Any) -> None:
    backend, rng = backend_for("gpu:0"), np.random.default_rng(0)
    op = registry.get("mp_sgd_mom_update")
    params = op.parse({"lr": "0.1", "momentum": "0.9", "wd": "0.1"})
    wide = [rng.normal(size=(3, n)).astype("f") for n in (5, 7)]
    arrays = [[backend.put(w.astype("e")), backend.put(w.astype("e")), backend.put(w), backend.put(w)] for w in wide]
    together = op.get_attr("FManySteps")(backend.xp, [(ones, params) for ones in arrays])
    assert together is not None
    together()
    for w, (weight, _, mom, copy) in zip(wide, arrays, strict=True):
        step = np.float32(0.9) * w - np.float32(0.1) * (w.astype("e").astype("f") + np.float32(0.1) * w)
        np.testing.assert_allclose(backend.get(mom), step, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(backend.get(copy), w + step, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(backend.get(weight), backend.get(copy).astype("e"))


def test_weights_that_share_memory_are_updated_one_after_the_other(gpu: Any) -> None:
    weight, grad = mx.nd.ones((4,), ctx=mx.gpu(0)), mx.nd.ones((4,), ctx=mx.gpu(0))
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.25))
    updater([0, 1], [grad, grad], [weight, weight])
    assert weight.asnumpy().tolist() == [0.5] * 4


def test_a_gradient_of_another_shape_is_refused_as_ever(gpu: Any) -> None:
    weights = [mx.nd.ones((4,), ctx=mx.gpu(0)) for _ in range(2)]
    grads = [mx.nd.ones((4,), ctx=mx.gpu(0)), mx.nd.ones((3,), ctx=mx.gpu(0))]
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.25))
    updater([0, 1], grads, weights)
    with pytest.raises(mx.errors.ShapeError, match=r"sgd_update: .*grad"):
        mx.nd.waitall()
