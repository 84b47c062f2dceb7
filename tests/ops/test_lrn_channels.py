"""LRN by channels in C, beside the compute by NumPy: to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.compute import Array
from opbox_ops.nn import lrn_channels as module
from opbox_ops.nn.lrn_channels import TEXT
from opbox_service.executor import BoundPlan, bind
from opbox_service.graph.json import load
from tests.allocations import counted
from tests.contract.live import symbol, var
from tests.machine import needs_vectors
from tests.switches import set_c_kernels
from tests.vectors_of_8 import with_vectors_of_8

from .thread_counts import assert_same_bits

pytestmark = needs_vectors

CPU = backend_for("cpu")
SHAPES = [(1, 1), (2, 3), (3, 7, 5), (1, 20, 8, 8), (2, 33, 9, 13), (2, 16, 64), (1, 96, 27, 27)]
"""Channels fewer than neighbours, and more than a ring has; positions with a rest, and of whole chunks."""
ATTRS = [{"nsize": "5"}, {"nsize": "1", "alpha": "0.3"}, {"nsize": "15", "knorm": "0.5", "alpha": "0.9"}]


def numbers(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float32)


def executor(data: Array, attrs: dict[str, str], level: str | None = None, gradient: Array | None = None) -> BoundPlan:
    """One of an LRN of `data`, which writes its gradient where there is room for it."""
    graph = load(symbol(var("data"), ("LRN", "lrn", attrs, [0])))
    grads = {} if gradient is None else {"data": gradient}
    return bind(graph, args={"data": data}, grads=grads, backend=CPU, random=CPU.random(0), level=level)


def results(data: Array, gout: Array, attrs: dict[str, str], level: str | None = None) -> list[Array]:
    """Out of inference and of training, and the gradient of data."""
    gradient = np.full_like(data, np.nan)
    bound = executor(data, attrs, level, gradient)
    bound.forward()
    inferred = bound.outputs[0].copy()
    bound.forward(is_train=True)
    bound.backward([gout])
    return [inferred, bound.outputs[0], gradient]


def levels(data: Array, attrs: dict[str, str], level: str | None = None) -> list[str]:
    """Of the computes of forward and the gradient."""
    steps = executor(data, attrs, level, np.empty_like(data)).plan.steps
    return [step.kernel.level for step in steps if step.node.op is not None and "LRN" in step.node.op.name]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("attrs", ATTRS, ids=str)
@pytest.mark.parametrize("width", [None, 8], ids=["vectors", "vectors of 8"])
def test_the_bits_of_numpy(
    shape: tuple[int, ...], attrs: dict[str, str], width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width:
        kernel = module.compiled(with_vectors_of_8(TEXT))
        assert kernel is not None
        monkeypatch.setattr(module, "lrn_channels", lambda: kernel)
    data, gout = numbers(*shape), numbers(*shape, seed=1)
    expected = results(data, gout, attrs, "reference")
    for result, other in zip(results(data, gout, attrs), expected, strict=True):
        np.testing.assert_array_equal(result, other)


def test_what_is_no_number() -> None:
    data, gout = numbers(1, 12, 70), numbers(1, 12, 70, seed=1)
    data[0, 3, 5], data[0, 8, 66], data[0, 1, 69] = np.nan, np.inf, 1e30
    for result, other in zip(results(data, gout, ATTRS[0]), results(data, gout, ATTRS[0], "reference"), strict=True):
        np.testing.assert_array_equal(result, other)
    assert np.isnan(results(data, gout, ATTRS[0])[0][0, 1:6, 5]).all()


def test_which_calls_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = numbers(2, 8, 6)
    assert levels(data, ATTRS[0]) == ["library"] * 2
    assert levels(data, ATTRS[0], "reference") == ["reference"] * 2
    assert levels(data, {"nsize": "5", "beta": "0.5"}) == ["reference"] * 2
    assert levels(data, {"nsize": "17"}) == ["reference"] * 2
    assert levels(data.astype(np.float64), ATTRS[0]) == ["reference"] * 2
    assert levels(data[:0], ATTRS[0]) == ["reference"] * 2
    set_c_kernels(monkeypatch, "0")
    assert levels(data, ATTRS[0]) == ["reference"] * 2


def test_inference_has_no_scale_and_allocates_nothing() -> None:
    data = numbers(2, 32, 40, 40)
    bound = executor(data, ATTRS[0])
    bound.forward()
    assert bound.memory.arena_bytes < data.nbytes, "nobody reads the scale"
    with counted() as allocated:
        bound.forward()
    assert not allocated


THREADS_SCRIPT = """
import sys
from tests.ops.test_lrn_channels import ATTRS, numbers, results
shape = (3, 40, 31, 33)
for array in results(numbers(*shape), numbers(*shape, seed=1), ATTRS[0]):
    sys.stdout.write(array.tobytes().hex())
"""


def test_threads_give_the_bits_of_one() -> None:
    assert_same_bits(THREADS_SCRIPT)
