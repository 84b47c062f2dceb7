"""ONNX files in the folder of models: converted by a process of their own, and served under the file's names."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.models.onnx_files import check_files, onnx_limits, read_onnx
from opbox_service.settings import Settings
from opbox_service.worker import landlock, seccomp
from tests.contract.live import TOKENS, Live
from tests.models.conftest import index, loaded
from tests.models.folders import CLASSES, FEATURES, expected, perceptron

X = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)


def write(path: Path) -> Path:
    """The perceptron as an ONNX file that takes any number of examples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    net, params = perceptron()
    mx.onnx.export_model(net, [params, {}], [(1, FEATURES)], onnx_file_path=str(path), dynamic=True)
    return path


@pytest.fixture(scope="module")
def onnx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("models")
    file = write(folder / "net" / "model.onnx")
    (folder / "batched").mkdir()
    shutil.copy(file, folder / "batched")
    (folder / "batched" / "model.toml").write_text("max_batch = 8\n")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "model.onnx").write_bytes(file.read_bytes()[:-9])
    live = Live("process", tmp_path_factory.mktemp("server"), OPBOX_MODELS=str(folder))
    loaded(live)
    yield live
    assert live.stop() == 0


@pytest.mark.parametrize("name", ["net", "batched"])
def test_outputs_under_the_files_names(onnx_server: Live, name: str) -> None:
    with mx.serve.Client(onnx_server.url, TOKENS["ann"]) as client:
        model = client.model(name)
        described = model.metadata()
        assert described["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}]
        assert described["outputs"] == [{"name": "softmax", "datatype": "FP32", "shape": [-1, CLASSES]}]
        for examples in (1, 5):
            (output,) = model(data=X[:examples]).values()
            # float32: the converted network multiplies in the same order, but adds the bias in a step of its own
            np.testing.assert_allclose(output, expected(X[:examples]), rtol=1e-6, atol=1e-7)


def test_a_damaged_file_is_told_in_the_index(onnx_server: Live) -> None:
    state, reason = index(onnx_server)["damaged", "1"]
    assert state == "UNAVAILABLE"
    assert reason.startswith("model.onnx: import_model: model.onnx: expected an ONNX model, got")


PROBE = """
import json, os, resource, socket, sys
from pathlib import Path
from opbox_service.models.onnx_limits import OnnxLimits
from opbox_service.worker.onnx_process import enter_walls

file, folder, secret = map(Path, sys.argv[1:4])
file, folder = enter_walls(file, folder, OnnxLimits(**json.loads(sys.argv[4])))

def is_refused(work):
    try:
        work()
    except OSError:
        return True
    return False

(folder / "written").write_bytes(file.read_bytes())
print(json.dumps({
    "secret": is_refused(secret.read_bytes),
    "beside": is_refused(lambda: Path(secret.parent, "new").write_text("")),
    "network": is_refused(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[5])), 5)),
    "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
    "user": os.getuid(),
}))
"""


def test_a_conversion_has_the_walls_of_users_code(tmp_path: Path) -> None:
    file, folder, secret = tmp_path / "v" / "model.onnx", tmp_path / "own", tmp_path / "other" / "secret"
    for path in (file, secret):
        path.parent.mkdir(mode=0o700)
        path.write_bytes(b"bytes")
        path.chmod(0o600)
    folder.mkdir()
    limits = onnx_limits(Settings(code_memory_bytes=1 << 30))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = [*map(str, (file, folder, secret)), json.dumps(asdict(limits)), str(listening.getsockname()[1])]
        ended = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    probe = json.loads(ended.stdout)
    root = os.geteuid() == 0
    assert (folder / "written").read_bytes() == b"bytes"
    assert probe["memory"] == 1 << 30
    assert (probe["user"] != os.getuid()) == root
    assert probe["secret"] == probe["beside"] == (root or landlock.abi() > 0)
    assert probe["network"] == (root or seccomp.available())


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv to drop a power")
def test_a_root_without_its_powers_says_what_to_grant(tmp_path: Path) -> None:
    file = write(tmp_path / "model.onnx")
    program = (
        "import sys; from pathlib import Path; from opbox_service.models.onnx_files import read_onnx\n"
        "from opbox_service.settings import Settings\n"
        "for user in (59_000, 0):\n"
        "    try: print(len(read_onnx(Path(sys.argv[1]), Settings(code_user=user)).params))\n"
        "    except Exception as error: print(error)\n"
    )
    command = ["setpriv", "--bounding-set", "-chown", "--inh-caps", "-chown", sys.executable, "-c", program, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    refusal, params = ended.stdout.splitlines()
    assert "expected the capability CHOWN" in refusal, ended.stderr
    assert int(params) == len(perceptron()[1])


def test_a_conversion_has_a_limit_of_memory(tmp_path: Path) -> None:
    """4 GiB of a constant, of which the file has two numbers."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"], name="big"),
        helper.make_node("ReduceSum", ["big"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    shape = numpy_helper.from_array(np.array([1 << 15, 1 << 15], np.int64), "shape")
    graph = helper.make_graph(nodes, "net", [x], [y], [shape])
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString())
    with pytest.raises(BadRequestError, match=r"model\.onnx: .*big.*: Unable to allocate 4\.00 GiB"):
        read_onnx(file, Settings(code_memory_bytes=1 << 30))


def test_a_link_is_no_conversion(tmp_path: Path) -> None:
    """Whoever took the process over could have the server read another owner's parameters."""
    for name in ("net-symbol.json", "net-0000.params", "tensors.json"):
        (tmp_path / name).write_bytes(b"")
    check_files("model.onnx", tmp_path)
    (tmp_path / "net-0000.params").unlink()
    (tmp_path / "net-0000.params").symlink_to(tmp_path / "tensors.json")
    with pytest.raises(BadRequestError, match=r"model\.onnx: .* converted to files, got one that leaves links"):
        check_files("model.onnx", tmp_path)


def test_a_conversion_is_bounded(tmp_path: Path) -> None:
    file = write(tmp_path / "model.onnx")
    with pytest.raises(BadRequestError, match=r"model\.onnx: expected a model that is converted within 0\.01 s"):
        read_onnx(file, Settings(), seconds=0.01)
    with pytest.raises(MXNetError, match="the graph has 9 nodes: expected at most 3"):
        read_onnx(file, Settings(max_nodes=3))
    with pytest.raises(FileNotFoundError):
        read_onnx(tmp_path / "none.onnx", Settings())
