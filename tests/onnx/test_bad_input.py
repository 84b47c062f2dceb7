"""What users get wrong about `mx.onnx`: one sentence each, and no file half written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx
import opbox as mx
from onnx import TensorProto, helper
from opbox_protocol.errors import MXNetError

DATA = mx.sym.Variable("data")
NET = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(DATA, num_hidden=3, name="fc"), name="softmax")
WEIGHT, BIAS = np.ones((3, 4), np.float32), np.zeros(3, np.float32)
PARAMS = {"fc_weight": WEIGHT, "fc_bias": BIAS}
NORM = mx.sym.BatchNorm(DATA, name="bn")


def export(path: Path, sym: Any = NET, params: Any = PARAMS, in_shapes: Any = ((2, 4),), **options: Any) -> str:
    return mx.onnx.export_model(sym, params, in_shapes, onnx_file_path=path, **options)


@pytest.mark.parametrize(
    ("changed", "error", "sentence"),
    [
        ({"sym": 3}, TypeError, r"sym: expected a Symbol or a path, got int$"),
        ({"sym": "none-symbol.json"}, FileNotFoundError, r"sym: .* got 'none-symbol\.json': no file$"),
        ({"params": "none.params"}, FileNotFoundError, r"params: .* got 'none\.params': no file$"),
        (
            {"params": 3},
            TypeError,
            r"params: expected a dict of arrays, \[arg_params, aux_params\] or a path, got int$",
        ),
        ({"params": [PARAMS, 3]}, TypeError, r"params: expected dicts of arrays, got int$"),
        ({"params": {"fc_weight": [1]}}, TypeError, r"params: fc_weight: expected an NDArray, got list$"),
        ({"params": {}}, ValueError, r"in_shapes: expected 3, .* \(data, fc_weight, fc_bias\), got 1$"),
        (
            {"sym": NORM, "params": {}},
            ValueError,
            r"expected the states too, got none of bn_moving_mean, bn_moving_var$",
        ),
        ({"in_shapes": None}, ValueError, r"in_shapes: expected 1, one for each .* \(data\), got None$"),
        ({"in_shapes": [(2, 4), (2,)]}, ValueError, r"in_shapes: expected 1, .* got 2$"),
        ({"in_shapes": [(2, 0)]}, ValueError, r"in_shapes: data: expected a tuple of numbers above 0, got \(2, 0\)$"),
        ({"in_shapes": [3]}, ValueError, r"in_shapes: data: expected a tuple of numbers above 0, got 3$"),
        ({"in_shapes": [(2, 5)]}, MXNetError, r"fc \(FullyConnected"),
        ({"in_types": [np.float32] * 2}, ValueError, r"in_types: expected 1 \(data\), got 2$"),
        ({"in_types": "soft"}, ValueError, r"in_types: expected NumPy types such as np\.float32, got 'soft'$"),
        ({"dynamic_input_shapes": [(None, 4)]}, ValueError, r"expected dynamic=True beside it, got dynamic=False$"),
        ({"dynamic": True, "dynamic_input_shapes": []}, ValueError, r"expected 1 \(data\), got 0$"),
        ({"dynamic": True, "dynamic_input_shapes": [(None, 5)]}, ValueError, r"data: expected \(2, 4\) with None"),
    ],
)
def test_arguments_of_export(changed: dict[str, Any], error: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        export(tmp_path / "net.onnx", **changed)
    assert list(tmp_path.iterdir()) == []


def test_every_operator_without_a_converter_is_named(tmp_path: Path) -> None:
    net = mx.sym.gamma(mx.sym.erfinv(mx.sym.gamma(DATA, name="one"), name="two"), name="three")
    with pytest.raises(MXNetError, match=r"got erfinv \(two\); gamma \(one, three\): write these by other operators$"):
        export(tmp_path / "net.onnx", net, {})


def test_what_onnx_lacks_is_told_with_its_node(tmp_path: Path) -> None:
    net = mx.sym.topk(DATA, ret_typ="mask", name="best")
    with pytest.raises(MXNetError, match=r"best \(topk\): ret_typ: expected indices, value or both, got mask$"):
        export(tmp_path / "net.onnx", net, {})


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="onnx_file_path: expected a folder that exists, got"):
        export(tmp_path / "none" / "net.onnx")
    with pytest.raises(IsADirectoryError, match="onnx_file_path: expected the path of a file, got the folder"):
        export(tmp_path)
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        export(path)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    assert path.read_bytes() == b"before"


def _model(tmp_path: Path, *op_types: str, opset: int = 17) -> Path:
    nodes, name = [], "x"
    for i, op_type in enumerate(op_types):
        nodes.append(helper.make_node(op_type, [name], [f"y{i}"], name=f"node{i}"))
        name = f"y{i}"
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("x", name)]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:])
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString())
    return path


@pytest.mark.parametrize("read", [mx.onnx.import_model, mx.onnx.get_model_metadata])
def test_files_that_are_no_models(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(FileNotFoundError, match="model_file: expected the path of an ONNX model"):
        read(path)
    with pytest.raises(TypeError, match="model_file: expected a path, got int"):
        read(3)
    path.write_bytes(b"\x07no model at all")
    with pytest.raises(MXNetError, match="expected an ONNX model, got"):
        read(path)
    export(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MXNetError, match="expected an ONNX model, got"):
        read(path)


def test_models_that_opbox_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(MXNetError, match=r"got Bernoulli \(node0, node2\); Mish \(node1\)$"):
        mx.onnx.import_model(_model(tmp_path, "Bernoulli", "Mish", "Bernoulli", opset=18))
    with pytest.raises(MXNetError, match=r"opset: expected 7 to 22, got 5: convert the model with"):
        mx.onnx.import_model(_model(tmp_path, "Relu", opset=5))
    mx.onnx.import_model(_model(tmp_path, "Relu", opset=22))


def test_a_model_is_checked_by_onnx(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    export(path, run_shape_inference=True, verbose=True)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.version for entry in model.opset_import] == [17]
    assert [value.name for value in model.graph.input] == ["data"]
    assert model.graph.value_info


def test_without_the_package_one_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        "import opbox as mx\n"
        "try: mx.onnx.import_model('x')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "mx.onnx: needs the package onnx: pip install 'opbox[onnx]'\n"
