"""Every operator that has a converter, on rows of the operator table: forward, exported, and imported again."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import _schema
from opbox.onnx import exporting
from opbox.onnx.network import labels_of
from opbox.symbol import Symbol
from opbox.symbol.compose import create
from opbox_protocol.errors import MXNetError
from tests.cases import Case, all_cases
from tests.cases.values import inputs

from .models import exported, forward, imported, same

ROWS = 4
"""Rows of an operator that are run: those whose elements are float32; others where none of these can be compared."""
NOT_EVALUATED = ("Deconvolution", "LRN", "RNN", "ROIPooling")
"""Operators of which onnx's evaluator lacks a part: groups in ConvTranspose, LRN's windows, Relu in RNN, MaxRoiPool."""
ONE_WAY = ("shape_array", "size_array", "_arange", "_full", "_ones", "_zeros")
"""Operators that become constants, or integers that opbox has as other types, on the way back."""


def _rows() -> dict[str, list[Case]]:
    rows = defaultdict(list)
    for case in all_cases():
        shaped = [getattr(arg, "shape", arg) for arg in case.inputs.values()]
        name = _schema.get(case.op).name
        if name in mx.onnx.get_operator_support() and all(shape and 0 not in shape for shape in shaped):
            rows[name].append(case)
    return rows


TABLE = _rows()


def test_every_converter_has_rows() -> None:
    assert sorted(TABLE) == mx.onnx.get_operator_support()


def _run(case: Case, path: Path) -> bool:
    """Whether opbox runs the row and ONNX has what it asks for; then all three results are the same."""
    arrays, op = inputs(case, case.dtypes[0]), _schema.get(case.op)
    values = [array for array in arrays.values() if array.dtype.kind == "f"]
    if not all(np.isfinite(array).all() for array in values):
        return False  # what runtimes make of NaN is their own
    net = Symbol(create(op, "op", [mx.sym.var(name) for name in arrays], {}, dict(case.attrs), "node"))
    states = set(net.list_auxiliary_states()) | ({list(arrays)[1]} if op.name == "RNN" else set())
    params = {name: array for name, array in arrays.items() if name in states}
    feeds = {name: array for name, array in arrays.items() if name not in states}
    try:
        expected = forward(net, feeds, params)
    except MXNetError:
        return False  # a row of what opbox refuses
    names = [name for name in net.list_inputs() if name in feeds and name not in labels_of(net, params)]
    try:
        mx.onnx.export_model(net, params, [arrays[n].shape for n in names], [arrays[n].dtype for n in names], path)
    except MXNetError as error:
        if not str(error).startswith(("export_model: node (", "export_model: onnx refuses", "export_model: node:")):
            raise
        return False
    feeds = {name: feeds[name] for name in names}
    if any(np.isnan(array.astype(np.float64)).any() for array in expected):
        return False
    half = any(array.dtype == np.float16 for array in (*arrays.values(), *expected))
    if op.name not in NOT_EVALUATED:
        same(exported(path, feeds), expected, half)
    if op.name not in ONE_WAY:
        same(imported(path, feeds), expected, half)
    return True


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_operator_keeps_its_numbers(name: str, tmp_path: Path) -> None:
    done = 0
    for case in sorted(TABLE[name], key=lambda case: case.dtypes[0] != "float32"):
        if done == ROWS or (done and case.dtypes[0] != "float32"):
            break
        done += _run(case, tmp_path / "net.onnx")
    assert done, f"{name}: no row of the table was compared"


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("convention", ["valid", "full"])
def test_sums_of_powers_keep_their_signs(power: int, convention: str, tmp_path: Path) -> None:
    """MXNet's pooling sums powers with their signs, ONNX's those of sizes."""
    feeds = {"data": np.random.RandomState(4).uniform(-1, 1, (2, 3, 5, 5)).astype("float32")}
    net = mx.sym.Pooling(
        mx.sym.Variable("data"),
        kernel=(2, 2),
        stride=(2, 2),
        pool_type="lp",
        p_value=power,
        pooling_convention=convention,
    )
    mx.onnx.export_model(net, {}, [(2, 3, 5, 5)], onnx_file_path=tmp_path / "net.onnx")
    expected = forward(net, feeds, {})
    same(exported(tmp_path / "net.onnx", feeds), expected)
    same(imported(tmp_path / "net.onnx", feeds), expected)


def test_a_parameter_that_a_converter_does_not_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(call: exporting.ExportCall) -> str:
        return call.emit("Sigmoid", call.inputs[0])

    monkeypatch.setitem(exporting.EXPORTERS, "hard_sigmoid", forgetful)
    for alpha, refused in ((0.2, False), (0.5, True)):
        net = mx.sym.hard_sigmoid(mx.sym.Variable("data"), alpha=alpha, name="node")
        sentence = r"node \(hard_sigmoid\): alpha: expected it not to be set, got 0\.5: its converter does not read it$"
        with pytest.raises(MXNetError, match=sentence) if refused else nullcontext():
            mx.onnx.export_model(net, {}, [(2, 3)], onnx_file_path=tmp_path / "net.onnx")


def test_bounds_of_states_are_refused(tmp_path: Path) -> None:
    """A bound of 0 is one too."""
    inputs = [mx.sym.Variable(name) for name in ("data", "weights", "state", "cell")]
    net = mx.sym.RNN(
        *inputs, mode="lstm", state_size=4, num_layers=1, lstm_state_clip_min=0, lstm_state_clip_max=1, name="node"
    )
    shapes = [(3, 2, 5), (1, 2, 4), (1, 2, 4)]
    with pytest.raises(MXNetError, match=r"node \(RNN\): lstm_state_clip_min: expected it not to be set, got 0"):
        mx.onnx.export_model(net, {"weights": np.zeros(176, np.float32)}, shapes, onnx_file_path=tmp_path / "net.onnx")


def test_get_operator_support_takes_the_opset_that_is_written() -> None:
    supported: Any = mx.onnx.get_operator_support(17)
    assert "Convolution" in supported
    with pytest.raises(ValueError, match=r"opset_version: expected 17, the one written, to 22, got 12$"):
        mx.onnx.get_operator_support(12)
