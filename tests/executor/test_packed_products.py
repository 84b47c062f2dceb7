"""A weight that is packed once for several products: the same numbers to the last bit, from the weight as it is now."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import highest_level
from opbox_ops.cpu.computes import product
from opbox_ops.nn.packed_product import MIN_CALLS, PACK, PACK_BACKWARD, PACKED, PACKED_BACKWARD
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor.passes.packed_products import _fitting, packed_products
from tests.executor.test_parts import compiled, operators
from tests.executor.test_shared_products import with_growth
from tests.machine import multiplies_bfloat16

PASSES = with_growth(shared=10, packed=10)
"""Memory is no matter."""
WITHOUT = tuple(rewrite for rewrite in PASSES if getattr(rewrite, "func", None) is not packed_products)
BATCH, WIDTH = 16, 32

pytestmark = pytest.mark.usefixtures("product_kernels")


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of every size are large ones."""
    for limit in ("MIN_MULTIPLICATIONS", "MIN_REORDERED_MULTIPLICATIONS", "MIN_SIDE", "MIN_ROWS_IN_BLOCKS"):
        monkeypatch.setattr(product, limit, 1)


def recurrent(steps=MIN_CALLS, bias=True, rows=BATCH):
    weights = [mx.sym.Variable("w"), *([mx.sym.Variable("b")] if bias else ())]
    h = mx.sym.Variable("h")
    for t in range(steps):
        h = mx.sym.tanh(mx.sym.FullyConnected(h, *weights, num_hidden=WIDTH, no_bias=not bias, name=f"fc{t}"))
    return mx.sym.MakeLoss(mx.sym.sum(h * h)), {"h": (rows, WIDTH)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, BATCH, 33])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_to_the_last_bit(rows, bias, dtype):
    if dtype == "bfloat16" and not multiplies_bfloat16():
        pytest.skip("a processor that does not multiply bfloat16")
    (tested, grads), (plain, expected) = (
        compiled(*recurrent(7, bias, rows), passes, dtype=numpy_dtype(dtype)) for passes in (PASSES, WITHOUT)
    )
    assert operators(tested).count(PACK.name) == 1
    assert operators(tested).count(PACKED.name) == 7
    assert operators(tested).count(PACK_BACKWARD.name) == 1
    assert operators(tested).count(PACKED_BACKWARD.name) == 7
    for executor in (tested, plain):
        for _ in range(2):
            weight = executor._external["arg", "w"]
            weight *= weight.dtype.type(0.5)
            executor.forward(is_train=True)
            executor.backward()
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_each_run_reads_the_weight_as_it_is():
    (tested, _), (plain, _) = (compiled(*recurrent(), passes) for passes in (PASSES, WITHOUT))
    before = None
    for train in (True, False, False):
        for executor in (tested, plain):
            executor._external["arg", "w"][...] *= 0.5
            executor.forward(is_train=train)
        np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
        assert not np.array_equal(tested.outputs[0], before)
        before = tested.outputs[0].copy()


def test_a_monitor_sees_the_products():
    symbol, shapes = recurrent()
    seen = []
    for passes in (PASSES, WITHOUT):
        executor, _ = compiled(symbol, shapes, passes)
        shown = {}
        executor.forward(monitor=lambda name, array, to=shown: to.update({name: array.copy()}))
        seen.append(shown)
    assert list(seen[0]) == list(seen[1])
    for name, array in seen[0].items():
        np.testing.assert_array_equal(array, seen[1][name], err_msg=name)


def test_few_calls_leave_the_weight_as_it_lies():
    assert PACK.name not in operators(compiled(*recurrent(MIN_CALLS - 1), PASSES)[0])


def test_the_reference_packs_nothing(monkeypatch):
    monkeypatch.setenv("OPBOX_COMPUTE_LEVEL", "reference")
    highest_level.cache_clear()
    try:
        assert PACK.name not in operators(compiled(*recurrent(), PASSES)[0])
    finally:
        monkeypatch.undo()
        highest_level.cache_clear()


def test_some_products_do_without_where_memory_is_short():
    """The last of forward, when most is alive, and the first of backward: twice as many and one more at each try."""
    fitting = partial(_fitting, growth=1.05)
    plan = SimpleNamespace(forward_steps=10, spare=0)
    alive = np.array([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 80, 60, 40, 30, 20, 10, 10, 10, 10])
    assert fitting(plan, alive, list(range(10)), 30) == [0, 1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(alive[:10], [40, 50, 60, 70, 80, 90, 100, 80, 90, 100])
    assert fitting(plan, alive, list(range(10, 20)), 5) == list(range(10, 20))
    assert fitting(plan, alive, list(range(10, 20)), 30) == list(range(13, 20))
    before = alive.copy()
    assert fitting(plan, alive, list(range(10)), 1000) == []
    np.testing.assert_array_equal(alive, before)


def test_a_plan_with_fewer_packed_products():
    few = with_growth(shared=10, packed=0.3)
    (tested, grads), (plain, expected) = (compiled(*recurrent(40), passes) for passes in (few, WITHOUT))
    names = operators(tested)
    assert MIN_CALLS <= names.count(PACKED.name) < 40
    assert names.index("FullyConnected") > names.index(PACKED.name)
    for executor in (tested, plain):
        executor.forward(is_train=True)
        executor.backward()
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_what_would_take_too_much_memory_is_left_out():
    none = with_growth(shared=10, packed=0.1)
    tested, plain = (compiled(*recurrent(), passes)[0] for passes in (none, WITHOUT))
    assert PACK.name not in operators(tested)
    assert tested.memory.arena_bytes == plain.memory.arena_bytes
