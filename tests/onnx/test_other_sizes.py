"""Exports with dynamic=True: the model gives the network's numbers at other sizes too, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError

from .models import exported, forward, same

DATA = mx.sym.Variable("data")
WINDOWS: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"}

RIGHT: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "all but the first axis as one": (mx.sym.Reshape(DATA, shape=(0, -1)), (2, 3, 4), (5, 7, 4)),
    "the last axes as one": (mx.sym.Reshape(DATA, shape=(0, -3)), (2, 3, 4), (5, 7, 4)),
    "a loss of more than two dimensions": (mx.sym.SoftmaxOutput(DATA, name="loss"), (2, 3, 4), (5, 7, 9)),
    "like another": (mx.sym.reshape_like(mx.sym.Reshape(DATA, shape=(-1,)), DATA), (2, 3), (5, 7)),
    "groups": (
        mx.sym.GroupNorm(DATA, mx.sym.ones((1,)), mx.sym.zeros((1,)), num_groups=1),
        (2, 3, 4, 4),
        (5, 3, 7, 9),
    ),
    "a squeezed axis": (mx.sym.squeeze(DATA), (2, 1, 4), (5, 1, 9)),
    "windows that are not full": (mx.sym.Pooling(DATA, pool_type="avg", **WINDOWS), (2, 3, 6, 6), (1, 3, 8, 9)),
}
REFUSED: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "the first axes as one": (
        mx.sym.Reshape(DATA, shape=(-3, 0), name="node"),
        (2, 3, 4),
        r"node \(Reshape\): expected \(36, 16\) for inputs of .*, got \(4, 144\): ONNX cannot express it for all sizes",
    ),
    "repeated elements": (
        mx.sym.repeat(DATA, repeats=2, axis=1, name="node"),
        (2, 3, 4),
        r"node \(repeat\): expected \(4, 18, 16\) for inputs",
    ),
    "sums of windows that are not full": (
        mx.sym.Pooling(DATA, pool_type="sum", name="node", **WINDOWS),
        (2, 3, 6, 6),
        r"node \(Pooling\): needs the whole shape",
    ),
    "windows that may begin behind the data": (
        mx.sym.Pooling(DATA, kernel=(1, 1), stride=(3, 3), pooling_convention="full", name="node"),
        (2, 3, 6, 6),
        r"node \(Pooling\): needs the whole shape",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_other_sizes_give_the_numbers_of_the_network(name: str, tmp_path: Path) -> None:
    net, shape, other = RIGHT[name]
    mx.onnx.export_model(net, {}, [shape], onnx_file_path=tmp_path / "net.onnx", dynamic=True)
    feeds = {"data": np.random.RandomState(1).uniform(-1, 1, other).astype("float32")}
    same(exported(tmp_path / "net.onnx", feeds), forward(net, feeds, {}))


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_has_not_for_all_sizes_is_refused(name: str, tmp_path: Path) -> None:
    net, shape, sentence = REFUSED[name]
    with pytest.raises(MXNetError, match=sentence):
        mx.onnx.export_model(net, {}, [shape], onnx_file_path=tmp_path / "net.onnx", dynamic=True)
    assert list(tmp_path.iterdir()) == []
    mx.onnx.export_model(net, {}, [shape], onnx_file_path=tmp_path / "net.onnx")
