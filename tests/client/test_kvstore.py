"""`mx.kv`: what pushes and pulls do in MXNet 1.9.1, by its own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def ones(factor: float = 1, context: Any = None) -> Any:
    return mx.nd.ones((2,), context) * factor


def value_of(kv: Any, key: Any) -> list[float]:
    out = mx.nd.zeros((2,))
    kv.pull(key, out=out)
    values: list[float] = out.asnumpy().tolist()
    return values


@pytest.mark.parametrize("kind", ["local", "device"])
def test_pushes_are_added_up_and_replace_the_value(kind: str) -> None:
    kv = mx.kv.create(kind)
    assert (kv.type, kv.rank, kv.num_workers, kv.is_capable("optimizer")) == (kind, 0, 1, True)
    kv.init("w", ones(3))
    assert value_of(kv, "w") == [3, 3]
    kv.push("w", [ones(2, context) for context in CONTEXTS])
    assert value_of(kv, "w") == [4, 4]
    pushed = ones(5)
    kv.push("w", pushed)
    pushed[:] = 7
    assert value_of(kv, "w") == [5, 5]
    kv.barrier()
    kv._barrier()


def test_lists_of_keys_take_lists_and_lists_of_lists() -> None:
    kv = mx.kvstore.create()
    kv.init([5, 7], [ones(), ones(2)])
    kv.push([5, 7], [[ones(1, context) for context in CONTEXTS], [ones(3, context) for context in CONTEXTS]])
    out = [[ones(0, context) for context in CONTEXTS] for _ in range(2)]
    kv.pull([5, 7], out=out)
    assert [[array.asnumpy()[0] for array in row] for row in out] == [[2, 2], [6, 6]]
    assert [array.context for array in out[0]] == CONTEXTS
    kv.push([5, 5], [ones(), ones(10)])
    assert value_of(kv, 5) == [11, 11]


def test_pushpull_and_broadcast() -> None:
    kv = mx.kv.create("device")
    out = [ones(0, context) for context in CONTEXTS]
    kv.broadcast("w", ones(7), out=out)
    assert [array.asnumpy()[0] for array in out] == [7, 7]
    gradients = [ones(1, CONTEXTS[0]), ones(3, CONTEXTS[1])]
    kv.pushpull("w", gradients)
    assert [array.asnumpy()[0] for array in gradients] == [4, 4]
    kv.pushpull("w", ones(9), out=out)
    assert out[1].asnumpy()[0] == 9


def test_an_updater_changes_the_stored_value() -> None:
    seen = []

    def update(key: Any, gradient: Any, stored: Any) -> None:
        seen.append(key)
        stored += gradient * 2

    for keys in ([1, 2], ["a", "b"]):
        kv = mx.kv.create()
        kv.init(keys, [ones(), ones(0)])
        kv._set_updater(update)
        kv.push(keys, [[ones(), ones()], [ones(3), ones(3)]])
        assert [value_of(kv, key) for key in keys] == [[5, 5], [12, 12]]
    assert seen == [1, 2, b"a", b"b"]


@pytest.mark.parametrize(("keys", "expected"), [((3, 1, 2), [1, 2, 3]), (("c", "a", "b"), [b"c", b"a", b"b"])])
def test_an_updater_is_called_in_the_order_of_the_keys(keys: Any, expected: Any) -> None:
    """By number, or as strings were stored: an updater with a state of its own would give other values."""
    kv, order = mx.kv.create(), []
    kv.set_updater(lambda key, gradient, value: order.append(key))
    kv.init(list(keys), [mx.nd.ones(1)] * 3)
    kv.push(list(reversed(keys)), [mx.nd.ones(1)] * 3)
    assert order == expected


def test_an_optimizer_updates_by_key(tmp_path: Path) -> None:
    kv = mx.kv.create()
    kv.init(3, ones(0))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    kv.push(3, ones())
    assert value_of(kv, 3) == pytest.approx([-0.1, -0.1])
    kv.save_optimizer_states(str(tmp_path / "states"))
    kv.push(3, ones())
    assert value_of(kv, 3) == pytest.approx([-0.29, -0.29])
    kv.load_optimizer_states(str(tmp_path / "states"))
    kv.push(3, ones())
    assert value_of(kv, 3) == pytest.approx([-0.48, -0.48])


def test_a_store_of_ones_own() -> None:
    @mx.kv.KVStoreBase.register
    class Mean(mx.kv.KVStoreBase):
        @staticmethod
        def is_capable(capability: str) -> bool:
            return False

        def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
            for array in out:
                array[:] = value

        def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
            for array in value if out is None else out:
                array[:] = sum(value) / len(value)

    kv = mx.kv.create("mean")
    assert kv.type == "mean"
    gradients = [ones(1), ones(3)]
    kv.pushpull("w", gradients)
    assert gradients[0].asnumpy().tolist() == [2, 2]
    del mx.kv.KVStoreBase.kv_registry["mean"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda kv: mx.kv.create("dist_sync"), mx.MXNetError, "dist_sync: expected a worker of several, got a program"),
        (
            lambda kv: mx.kv.create("dist_async"),
            mx.MXNetError,
            "expected 'dist_sync', got 'dist_async': workers",
        ),
        (lambda kv: mx.kv.create("nccl"), mx.MXNetError, "expected one of local, device, .*, got 'nccl'"),
        (lambda kv: mx.kv.create(3), TypeError, "name: expected a string such as 'local' or 'device', got 3"),
        (lambda kv: kv.init("w", ones()), mx.MXNetError, "init: expected a key without a value, got 'w'"),
        (lambda kv: kv.init(3, ones()), mx.MXNetError, "expected keys of one type, as 'w', got 3"),
        (lambda kv: kv.init(["a", 3], [ones(), ones()]), AssertionError, "init: expected keys of one type"),
        (lambda kv: kv.init(["a", "b"], [ones()]), AssertionError, "expected a value for each of 2 keys, got 1"),
        (lambda kv: kv.init(3.0, ones()), AssertionError, "expected a string or an integer as key, got 3.0"),
        (lambda kv: kv.init("z", 3), TypeError, "'z': expected an NDArray or a list of them, got 3"),
        (lambda kv: kv.init("z", [3]), AssertionError, "'z': expected an NDArray, got 3"),
        (lambda kv: kv.push("x", ones()), mx.MXNetError, "push: expected a key with a value, got 'x': call init"),
        (lambda kv: kv.pull("x", out=ones()), mx.MXNetError, "pull: expected a key with a value, got 'x'"),
        (lambda kv: kv.pull("w"), AssertionError, "pull: out: expected an array to write to, got None"),
        (lambda kv: kv.pull("w", out=mx.nd.ones((3,))), mx.MXNetError, r"'w': expected an array of shape \(2,\)"),
        (lambda kv: kv.set_optimizer("sgd"), TypeError, "expected one such as .*, got 'sgd'"),
        (lambda kv: kv.set_updater(3), TypeError, "expected a function of key, gradient and weight, got 3"),
        (lambda kv: kv.save_optimizer_states("x"), AssertionError, "expected a store with an optimizer, got none"),
        (lambda kv: kv.row_sparse_pull("w", ones(), row_ids=ones()), mx.MXNetError, "arrays are dense; use pull"),
        (lambda kv: kv.is_capable("x"), ValueError, "expected 'optimizer', got 'x'"),
        (lambda kv: kv.set_gradient_compression({"type": "2bit"}), ValueError, "a store of type 'device', got 'local'"),
    ],
)
def test_what_is_wrong_is_said(call: Any, error: type[Exception], message: str) -> None:
    kv = mx.kv.create()
    kv.init("w", ones())
    with pytest.raises(error, match=message) as caught:
        call(kv)
    assert "\n" not in str(caught.value)


def test_nothing_is_sent_until_a_value_is_wanted() -> None:
    kv = mx.kv.create()
    kv.init([1, 2], [ones(), ones()])
    kv.set_optimizer(mx.optimizer.Adam())
    mx.nd.waitall()
    session = mx.cpu().session
    before = session.requests
    for _ in range(3):
        kv.pushpull([1, 2], [[ones(1, one) for one in CONTEXTS]] * 2, out=[[ones(0)], [ones(0)]])
    assert session.requests == before
    np.testing.assert_array_equal(value_of(kv, 1), value_of(kv, 2))
    assert session.requests == before + 2
