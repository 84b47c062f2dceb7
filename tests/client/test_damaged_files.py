"""Damaged files of every kind: an MXNetError with the file's name, whatever is wrong with it, and nothing half read."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.base import MXNetError
from opbox_protocol import wire
from tests.fuzzing import FUZZ

DAMAGED = 60
"""Variants of each kind of file in a run of the tests: two seconds for all kinds."""


def params(path: Path) -> bytes:
    mx.nd.save(path, {"arg:fc_weight": mx.nd.ones((3, 4)), "aux:mean": mx.nd.zeros((2,), dtype="float16")})
    return path.read_bytes()


def trained(momentum: float = 0.9) -> mx.optimizer.Updater:
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", momentum=momentum))
    updater(0, mx.nd.ones((2,)), mx.nd.ones((2,)))
    return updater


def records(path: Path) -> bytes:
    writer = mx.recordio.MXRecordIO(path, "w")
    for number in range(3):
        writer.write(mx.recordio.pack((0, number, number, 0), b"abcdefg" * number))
    writer.close()
    return path.read_bytes()


def read_records(path: Path) -> None:
    reader = mx.recordio.MXRecordIO(path, "r")
    while reader.read() is not None:
        pass


def read_index(path: Path) -> None:
    records(path.with_suffix(".rec"))
    reader = mx.recordio.MXIndexedRecordIO(path, path.with_suffix(".rec"), "r")
    for key in reader.keys:
        reader.read_idx(key)


def symbol(path: Path) -> bytes:
    mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc").save(path)
    return path.read_bytes()


def load_states(path: Path) -> None:
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.SGD(momentum=0.9))
    store.load_optimizer_states(str(path))


IMAGES = struct.pack(">IIII", 2051, 2, 3, 3) + bytes(18)


def read_mnist(path: Path) -> None:
    labels = path.with_suffix(".labels")
    labels.write_bytes(struct.pack(">II", 2049, 2) + bytes(2))
    mx.io.MNISTIter(image=path, label=labels, batch_size=1)


KINDS: Mapping[str, tuple[Callable[[Path], bytes], Callable[[Path], Any]]] = {
    "params": (params, mx.nd.load),
    "symbol": (symbol, mx.sym.load),
    "states": (lambda path: trained().get_states(True), load_states),
    "records": (records, read_records),
    "index": (lambda path: b"0\t0\n1\t32\n2\t72\n", read_index),
    "mnist": (lambda path: IMAGES, read_mnist),
    "gzipped": (lambda path: gzip.compress(IMAGES), read_mnist),
    "csv": (lambda path: b"1,2\n3,4\n", lambda path: mx.io.CSVIter(data_csv=path, data_shape=(2,), batch_size=1)),
    "svm": (
        lambda path: b"1 0:2 2:3\n0 1:4\n",
        lambda path: mx.io.LibSVMIter(data_libsvm=path, data_shape=(3,), batch_size=1),
    ),
}


def damaged(right: bytes, source: random.Random) -> Iterator[bytes]:
    yield from (b"", b"\0", b"\xff\xfe\x00", b"[" * 100_000, right[: len(right) // 2], right[:-1], right + b"\xff")
    while True:
        data = bytearray(right)
        for _ in range(source.choice((1, 1, 3, 8))):
            data[source.randrange(len(data))] = source.choice((0, 1, 255, source.randrange(256)))
        yield bytes(data[: source.randrange(len(data))]) if source.random() < 0.2 else bytes(data)


@pytest.mark.parametrize("kind", KINDS)
def test_any_damage_is_an_mxnet_error_with_the_files_name(kind: str, tmp_path: Path) -> None:
    write, read = KINDS[kind]
    path = tmp_path / "some.file"
    right = write(path)
    path.write_bytes(right)
    read(path)
    refused, faults = 0, []
    variants = damaged(right, random.Random(FUZZ))
    for _ in range(DAMAGED * FUZZ):
        data = next(variants)
        path.write_bytes(data)
        try:
            read(path)
        except MXNetError as error:
            refused += 1
            # What a symbol's nodes say is told with the node's name; an index may be right of another file of records.
            if "/some." not in str(error) and kind != "symbol":
                faults.append(f"{data[:60]!r}: without the file's name: {error}")
        except Exception as error:
            faults.append(f"{data[:60]!r}: {type(error).__name__}: {error}")
    assert not faults, "\n".join(faults[:20])
    assert refused


def frame(header: Mapping[str, Any]) -> bytes:
    """States in opbox's former format."""
    head, buffers = wire.encode({"format": "optimizer states", **header}, {"a": np.ones(2, np.float32)}, "inputs")
    return b"opboxst1" + struct.pack("<Q", len(head)) + head + b"".join(buffers)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "expected a file of save_optimizer_states, opbox's or MXNet's, got 0 bytes that are none"),
        (pickle.dumps(3), "expected a state for each weight's index, got 3"),
        (pickle.dumps({0: "x"}), "expected arrays, tuples and None, got str"),
        (frame({"states": 3}), "expected a header of states and an optimizer, got another"),
        (frame({"states": [[0, "b"]]}), "expected a header of states and an optimizer, got another"),
        (frame({"states": [[0, "a"]], "optimizer": {"name": "SGD"}}), "expected a header of states and an optimizer"),
        (frame({}), "expected a header of states and an optimizer, got another (KeyError: 'states')"),
    ],
)
def test_states_that_are_none_change_nothing(data: bytes, sentence: str) -> None:
    updater = trained()
    before = updater.states[0].asnumpy().tolist()
    with pytest.raises(MXNetError) as raised:
        updater.set_states(data)
    assert str(raised.value).startswith(f"optimizer states: {sentence}"), raised.value
    assert (updater.optimizer.momentum, updater.states[0].asnumpy().tolist()) == (0.9, before)


def test_states_of_which_one_is_wrong_do_not_change_the_optimizer() -> None:
    _, optimizer = pickle_parts(trained(0.5).get_states(True))
    updater = trained()
    with pytest.raises(MXNetError, match="expected arrays, tuples and None, got int"):
        updater.set_states(mx.optimizer.updater.pickles.dumps(({0: 7}, optimizer)))
    assert updater.optimizer.momentum == 0.9


def pickle_parts(raw: bytes) -> tuple[Any, Any]:
    return mx.optimizer.updater.pickles.loads(raw, set())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (lambda right: right.replace(b"arg:fc_weight", b"\xff" * 13), r"expected an array's name in UTF-8, got b'\xff"),
        (
            lambda right: right.replace(b"arg:fc_weight", b"xxx:fc_weight"),
            "expected names that begin with arg: or aux:,",
        ),
        (lambda right: right[:50], "it is cut off, or no file of mx.nd.save's"),
    ],
)
def test_a_checkpoints_parameters(data: Callable[[bytes], bytes], sentence: str, tmp_path: Path) -> None:
    prefix, path = tmp_path / "net", tmp_path / "net-0001.params"
    symbol(tmp_path / "net-symbol.json")
    path.write_bytes(data(params(path)))
    with pytest.raises(MXNetError) as raised:
        mx.model.load_checkpoint(str(prefix), 1)
    assert sentence in str(raised.value)
    assert str(raised.value).startswith(str(path))
    # A list has no names; MXNet finds no method of it.
    mx.nd.save(path, [mx.nd.ones((2,))])
    with pytest.raises(MXNetError, match="got 1 arrays without names"):
        mx.model.load_params(str(prefix), 1)


def test_a_shape_that_no_array_can_have(tmp_path: Path) -> None:
    head = struct.pack("<QQQIiI", 0x112, 0, 1, 0xF993FACA, 0, 3)
    (tmp_path / "a.params").write_bytes(head + struct.pack("<3q3iQ", 1 << 62, 4, 0, 1, 0, 0, 0))
    with pytest.raises(MXNetError, match=r"a\.params: expected sizes that an array can have, got \(46"):
        mx.nd.load(tmp_path / "a.params")


def test_operators_beside_a_symbol(tmp_path: Path) -> None:
    symbol(tmp_path / "net-symbol.json")
    for text in (b"[" * 100_000, b"\xff", b"3", json.dumps({"format": "opbox operators 1", "sources": 3}).encode()):
        (tmp_path / "net-ops.json").write_bytes(text)
        with pytest.raises(MXNetError, match=r"net-ops\.json: expected operators as Symbol\.save writes them, got"):
            mx.sym.load(tmp_path / "net-symbol.json")


def test_a_file_of_records_that_is_not_there(tmp_path: Path) -> None:
    """MXNet raises its own error, Python FileNotFoundError: it is both."""
    for error in (MXNetError, FileNotFoundError):
        with pytest.raises(error, match=r"none\.rec: expected a file to read, got none"):
            mx.recordio.MXRecordIO(tmp_path / "none.rec", "r")
