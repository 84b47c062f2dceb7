"""Modules that share their parameters: each has their values, whichever has changed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx

pytestmark = pytest.mark.usefixtures("engine")


def network(hidden: int = 8, extra: bool = False) -> Any:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=hidden, name="fc1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn")
    if extra:
        net = mx.sym.FullyConnected(net, num_hidden=hidden, name="extra")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def batch_of(rows: int) -> Any:
    rng = np.random.RandomState(rows)
    return mx.io.DataBatch([rng.randn(rows, 6).astype("float32")], [(np.arange(rows) % 3).astype("float32")])


def bound(rows: int, shared: Any = None, symbol: Any = None) -> Any:
    mod = mx.mod.Module(network() if symbol is None else symbol)
    mod.bind([("data", (rows, 6))], [("softmax_label", (rows,))], shared_module=shared)
    return mod


def trained_by(mod: Any, rows: int) -> None:
    mod.forward_backward(batch_of(rows))
    mod.update()


def arrays(params: Any) -> dict[str, Any]:
    return {name: array.asnumpy() for side in params for name, array in side.items()}


def assert_equal(first: Any, second: Any) -> None:
    one, two = arrays(first), arrays(second)
    assert sorted(one) == sorted(two)
    assert len(one) > 0
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


@pytest.fixture
def pair() -> tuple[Any, Any]:
    mod = bound(4)
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.1})
    return mod, bound(2, mod)


def test_both_have_the_parameters_whoever_trains(pair: tuple[Any, Any]) -> None:
    mod, other = pair
    assert_equal(other.get_params(), mod.get_params())
    for trained, rows in ((mod, 4), (other, 2), (mod, 4)):
        before = arrays(mod.get_params())
        trained_by(trained, rows)
        assert_equal(other.get_params(), mod.get_params())
        after = arrays(mod.get_params())
        assert np.abs(after["fc1_weight"] - before["fc1_weight"]).max() > 0
        np.testing.assert_array_equal(after["fc1_weight"], mod._exec.arg_dict["fc1_weight"].asnumpy())


def test_parameters_set_on_one_side_are_the_others(pair: tuple[Any, Any]) -> None:
    mod, other = pair
    args, aux = mod.get_params()
    for side, reader in ((other, mod), (mod, other)):
        new = {name: array + 1 for name, array in args.items()}, {name: array + 1 for name, array in aux.items()}
        side.set_params(*new)
        assert_equal(reader.get_params(), new)
        side.init_params(mx.init.One(), force_init=True)
        assert reader.get_params()[0]["fc1_weight"].asnumpy().min() == 1


def test_a_checkpoint_of_a_module_that_shares_has_the_parameters(pair: tuple[Any, Any], tmp_path: Path) -> None:
    mod, other = pair
    trained_by(mod, 4)
    other.save_checkpoint(str(tmp_path / "other"), 1, save_optimizer_states=True)
    _, args, aux = mx.model.load_checkpoint(str(tmp_path / "other"), 1)
    assert_equal((args, aux), mod.get_params())
    other.save_params(str(tmp_path / "other.params"))
    fresh = bound(4)
    fresh.load_params(str(tmp_path / "other.params"))
    assert_equal(fresh.get_params(), mod.get_params())


def test_a_module_that_was_loaded_takes_the_parameters_that_it_shares(pair: tuple[Any, Any], tmp_path: Path) -> None:
    mod, _ = pair
    mod.save_checkpoint(str(tmp_path / "old"), 0)
    trained_by(mod, 4)
    loaded = mx.mod.Module.load(str(tmp_path / "old"), 0)
    loaded.bind([("data", (2, 6))], [("softmax_label", (2,))], shared_module=mod)
    assert_equal(loaded.get_params(), mod.get_params())


def test_binding_anew_keeps_what_was_shared(pair: tuple[Any, Any]) -> None:
    mod, other = pair
    trained_by(mod, 4)
    expected = mod.get_params()
    other.bind([("data", (3, 6))], [("softmax_label", (3,))], force_rebind=True)
    assert_equal(other.get_params(), expected)
    np.testing.assert_array_equal(other._exec.arg_dict["fc1_weight"].asnumpy(), expected[0]["fc1_weight"].asnumpy())


def test_a_part_of_a_network_trains_its_own_parameters_alone() -> None:
    whole = bound(4, symbol=network(extra=True))
    whole.init_params(mx.init.Xavier())
    whole.init_optimizer(optimizer_params={"learning_rate": 0.1})
    part = bound(2, whole)
    whole.forward_backward(batch_of(4))  # leaves gradients in all arrays
    before = arrays(whole.get_params())
    trained_by(part, 2)
    after = arrays(whole.get_params())
    assert sorted(arrays(part.get_params())) == sorted(name for name in before if not name.startswith("extra"))
    np.testing.assert_array_equal(after["extra_weight"], before["extra_weight"])
    assert np.abs(after["fc1_weight"] - before["fc1_weight"]).max() > 0


def test_buckets_have_all_parameters_in_one_checkpoint(tmp_path: Path) -> None:
    def symbol_of(key: int) -> Any:
        return network(extra=key == 2), ("data",), ("softmax_label",)

    mod = mx.mod.BucketingModule(symbol_of, 4)
    mod.bind([("data", (4, 6))], [("softmax_label", (4,))])
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.1})
    for rows in (4, 2, 4):
        batch = batch_of(rows)
        batch.bucket_key = rows
        batch.provide_data, batch.provide_label = [("data", (rows, 6))], [("softmax_label", (rows,))]
        mod.forward_backward(batch)
        mod.update()
        mod.get_params()
    args, aux = mod.get_params()
    own = mod._buckets[2]._exec.arg_dict
    assert sorted(args) == sorted(name for name in own if name not in ("data", "softmax_label"))
    for name, value in args.items():
        np.testing.assert_array_equal(value.asnumpy(), own[name].asnumpy(), err_msg=name)
    assert np.abs(args["extra_bias"].asnumpy()).max() > 0  # it began at zero, and is trained
    mod.save_params(str(tmp_path / "all.params"))
    assert len(mx.nd.load(str(tmp_path / "all.params"))) == len(args) + len(aux)
