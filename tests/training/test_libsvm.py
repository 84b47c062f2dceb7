"""LibSVMIter: the batches of MXNet's documentation, which MXNet 1.9.1 gives, dense; and wrong input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx

DATA = "1.0 0:0.5 2:1.25\n-2.0\n-3.0 0:0.5 1:2.5 2:1.25\n4 2:-1.25\n"
ROWS = [[0.5, 0, 1.25], [0, 0, 0], [0.5, 2.5, 1.25], [0, 0, -1.25]]
LABELS = "1.0\n-2.0 0:0.125\n-3.0 2:1.25\n4 1:1.0 2:-1.25\n"


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "label.t").write_text(LABELS)
    (tmp_path / "data.t").write_text(DATA)
    return str(tmp_path / "data.t")


def test_batches_go_round(data: str) -> None:
    iterator = mx.io.LibSVMIter(data_libsvm=data, data_shape=(3,), batch_size=3)
    assert iterator.provide_data == [("data", (3, 3))]
    assert iterator.provide_label == [("softmax_label", (3,))]
    epochs = []
    for _ in range(3):
        epochs.append([(batch.label[0].asnumpy().tolist(), batch.pad) for batch in iterator])
        iterator.reset()
    assert epochs == [[([1, -2, -3], 0), ([4, 1, -2], 2)], [([-3, 4, 1], 1)], [([-2, -3, 4], 0)]]
    np.testing.assert_array_equal(next(iterator).data[0].asnumpy(), ROWS[:3])


def test_labels_of_a_file_of_their_own(data: str) -> None:
    label = data.replace("data.t", "label.t")
    iterator = mx.io.LibSVMIter(data, (3,), 4, label_libsvm=label, label_shape=(3,))
    expected = [[0, 0, 0], [0.125, 0, 0], [0, 0, 1.25], [0, 1, -1.25]]
    np.testing.assert_array_equal(next(iterator).label[0].asnumpy(), expected)


def test_parts_have_every_row_once(data: str) -> None:
    parts = [mx.io.LibSVMIter(data, (3,), 1, num_parts=3, part_index=part) for part in range(3)]
    assert [float(b.label[0].asnumpy()[0]) for part in parts for b in part] == [1, -2, -3, 4]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: mx.io.LibSVMIter(path + "x", (3,), 1), "data.tx: expected a file to read, got none"),
        (lambda path: mx.io.LibSVMIter(path, (2,), 1), "line 1: expected indices from 0 to 1, got 2"),
        (lambda path: mx.io.LibSVMIter(path, (3, 1), 1), r"data_shape: expected \(width,\), got \(3, 1\)"),
        (lambda path: mx.io.LibSVMIter(path, (3,), 1, round_batch=False), "round_batch: expected True, got False"),
        (lambda path: mx.io.LibSVMIter(path, (3,), 1, dtype="float64"), "dtype: expected float32, got float64"),
        (lambda path: mx.io.LibSVMIter(path, (3,), 1, num_parts=2, part_index=2), "expected 0 to num_parts - 1"),
        (lambda path: mx.io.LibSVMIter(__file__, (3,), 1), "line 1: expected a label and pairs index:value, got"),
    ],
)
def test_wrong_input_says_so(data: str, call: Callable[[str], Any], words: str) -> None:
    with pytest.raises(mx.MXNetError, match=words):
        call(data)


def test_mnist_iter_takes_what_mxnet_takes(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(bytes([0, 0, 8, 3, *(0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2), *range(8)]))
    (tmp_path / "labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]))
    arguments = {
        "image": str(tmp_path / "images"),
        "label": str(tmp_path / "labels"),
        "batch_size": 2,
        "shuffle": False,
    }
    plain = next(mx.io.MNISTIter(**arguments, data_shape=(784,)))
    assert plain.data[0].shape == (2, 1, 2, 2)
    with pytest.warns(UserWarning, match="MNISTIter: flatt is no argument of it, and is not used: did you mean flat"):
        mx.io.MNISTIter(**arguments, flatt=True)
