"""Files of optimizers' states: MXNet's are read, ours are written as MXNet writes them, and a file runs nothing."""

from __future__ import annotations

import base64
import json
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.optimizer import pickles
from opbox.optimizer.pickles import Described
from opbox_protocol import wire

ROWS = json.loads((Path(__file__).parent / "mxnet_states.json").read_text())
"""What record_mxnet_states.py wrote with real MXNet 1.9.1."""


def name_of(row: Any) -> str:
    return "-".join([row["name"], *row["options"], *(["optimizer"] if row["dump"] else [])])


def updater(row: Any) -> mx.optimizer.Updater:
    options = {"learning_rate": 0.1, "wd": 0.0 if row["name"] == "nag" else 0.01, "rescale_grad": 0.5}
    if row["dump"]:
        options = dict.fromkeys(options, 3.0)  # those of the file take their places
    names = {0: "fc_weight", 1: "fc_bias"}
    optimizer = mx.optimizer.create(row["name"], param_idx2name=names, **options, **row["options"])
    return mx.optimizer.get_updater(optimizer)


def go_on(updater: mx.optimizer.Updater, row: Any) -> list[np.ndarray[Any, Any]]:
    """The weights after the steps that MXNet took from this file."""
    weights = [mx.nd.array(values, dtype=row["dtype"]) for values in row["before"]]
    for step in row["gradients"]:
        updater([0, 1], [mx.nd.array(values, dtype=row["dtype"]) for values in step], weights)
    return [weight.asnumpy() for weight in weights]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_training_goes_on_from_mxnets_file_and_from_ours(row: Any) -> None:
    resumed = updater(row)
    resumed.set_states(base64.b64decode(row["states"]))
    again = updater(row)
    again.set_states(resumed.get_states(dump_optimizer=row["dump"]))
    for one in (resumed, again):
        for got, wanted in zip(go_on(one, row), row["after"], strict=True):
            # Two steps of float32 on numbers below 1; of float16 weights the copies, rounded alike.
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_ours_have_what_mxnets_have(row: Any) -> None:
    raw = base64.b64decode(row["states"])
    resumed = updater(row)
    resumed.set_states(raw)
    ours, mxnets = (pickles.loads(file, ()) for file in (resumed.get_states(row["dump"]), raw))
    states, expected = (file[0] if row["dump"] else file for file in (ours, mxnets))
    assert pickles.dumps(states) == pickles.dumps(expected)
    if row["dump"]:
        (_, optimizer), (_, wanted) = ours, mxnets
        assert (optimizer.module, optimizer.name) == (wanted.module, wanted.name)
        assert wanted.values.keys() - optimizer.values.keys() == set()
        left_out = {"sym_info", "cumgrads"}
        ours_scheduler, scheduler = optimizer.values.pop("lr_scheduler"), wanted.values.pop("lr_scheduler")
        assert {name: optimizer.values[name] for name in wanted.values if name not in left_out} == {
            name: value for name, value in wanted.values.items() if name not in left_out
        }
        if scheduler is not None:
            assert (ours_scheduler.module, ours_scheduler.name) == (scheduler.module, scheduler.name)
            assert {name: ours_scheduler.values[name] for name in scheduler.values} == scheduler.values


def test_python_reads_the_opcodes() -> None:
    value = {0: (None, True, False, -1, 1 << 70, 0.5, "é"), "w": [1, [2]], 1: {}}
    assert pickle.loads(pickles.dumps(value)) == value
    raw = pickles.dumps({0: np.zeros((2,), "f"), 1: Described("mxnet.optimizer.optimizer", "SGD", {"lr": 0.1})})
    named = [argument for opcode, argument, _ in pickletools.genops(raw) if opcode.name == "GLOBAL"]
    assert named == ["mxnet.ndarray.ndarray NDArray", "builtins bytearray", "mxnet.optimizer.optimizer SGD"]


class _Runs:
    def __reduce__(self) -> Any:
        return eval, ("1 + 1",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (pickle.dumps({0: _Runs()}), r"names builtins\.eval: such a file could run any program, and is not read"),
        (b"cos\nsystem\n(S'true'\ntR.", r"names os\.system"),
        (b"cmxnet.optimizer.optimizer\nos.system\n.", r"names mxnet\.optimizer\.optimizer\.os\.system"),
        (b"\x80\x04cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "expected an array's bytes, got 2147483647"),
        (b"\x80\x03}q\x00", "expected a file of save_optimizer_states, opbox's or MXNet's, got 5 bytes that are none"),
        (b"weights", "got 7 bytes that are none"),
        (b"", "got 0 bytes that are none"),
        (pickle.dumps([1, 2]), r"expected a state for each weight's index, got \[1, 2\]"),
        (pickle.dumps({0: 3}), "expected arrays, tuples and None, got int"),
        (pickle.dumps(({}, 3)), "expected an optimizer behind the states, got 3"),
        (pickle.dumps({0: {1}}), "expected numbers, strings and arrays, got set"),
        (pickles.dumps({0: np.zeros(3, "f")})[:-20] + b".", "bytes that are none"),
        (b"opboxst1", "the file is cut off"),
    ],
)
def test_what_is_no_file_of_states_is_refused(raw: bytes, message: str) -> None:
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd"))
    with pytest.raises(mx.MXNetError, match=message):
        updater.set_states(raw)
    assert updater.states == {}


def test_a_module_reads_mxnets_file(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row["name"] == "adam" and not row["dump"])
    path = tmp_path / "net.states"
    path.write_bytes(base64.b64decode(row["states"]))
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.LinearRegressionOutput(net, name="out"), label_names=["out_label"])
    module.bind([("data", (1, 2))], [("out_label", (1, 3))])
    module.init_params()
    module.init_optimizer(optimizer="adam")
    module.load_optimizer_states(str(path))
    module.save_optimizer_states(str(path))
    assert pickles.dumps(pickles.loads(path.read_bytes(), ())) == pickles.dumps(
        pickles.loads(base64.b64decode(row["states"]), ())
    )


def test_a_users_own_optimizer_and_scheduler() -> None:
    @mx.optimizer.register
    class Halving(mx.optimizer.SGD):
        """An optimizer of the user's own."""

    class Slow(mx.lr_scheduler.LRScheduler):
        def __call__(self, num_update: int) -> float:
            return self.base_lr

    try:
        first = mx.optimizer.get_updater(Halving(momentum=0.5, lr_scheduler=Slow(0.25)))
        first(0, mx.nd.ones((2,)), mx.nd.ones((2,)))
        raw = first.get_states(dump_optimizer=True)
        again = mx.optimizer.get_updater(Halving(lr_scheduler=Slow(1)))
        again.set_states(raw)
        assert (again.optimizer.momentum, again.optimizer.lr_scheduler.base_lr) == (0.5, 0.25)  # type: ignore[attr-defined]
        other = mx.optimizer.get_updater(Halving())
        with pytest.raises(mx.MXNetError, match=r"names .*Slow"):
            other.set_states(raw)
    finally:
        del mx.optimizer.Optimizer.opt_registry["halving"]


def test_a_file_of_opbox_before_that_is_read() -> None:
    header = {
        "format": "optimizer states",
        "states": [[0, "0"], [1, ["1", None]]],
        "optimizer": {
            "name": "sgd",
            "facts": {"lr": 0.25, "momentum": 0.5, "idx2name": [[0, "w"]], "lr_mult": [], "wd_mult": []},
            "counts": [[0, 3]],
        },
    }
    head, buffers = wire.encode(header, {"0": np.ones(2, "f"), "1": np.zeros(3, "f")}, key="inputs")
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd"))
    updater.set_states(b"".join([b"opboxst1", struct.pack("<Q", len(head)), head, *buffers]))
    np.testing.assert_array_equal(updater.states[0].asnumpy(), [1, 1])
    assert updater.states[1][1] is None
    optimizer: Any = updater.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.idx2name) == (0.25, 0.5, {0: "w"})
    assert optimizer._index_update_count == {0: 3}
