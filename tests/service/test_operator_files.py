"""Operators that a server is given: files (`--ops`) and packages; what is wrong with one is said at the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_protocol.errors import BadRequestError
from opbox_service.engine import load_plugin
from tests.contract.live import TOKENS, Live

OPERATOR = """
from opbox_ops import register

op = register({name!r})

@op.infer_shape
def _(p, ins, outs):
    outs.merge(0, ins.merge(0, outs[0]))

@op.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = 2 * inputs[0]
"""


def serve(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`opbox serve` in a folder, where it is expected to end at once."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    command = [sys.executable, "-m", "opbox_service.serve", "--port", "0", *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env={**inherited, **env}
    )


FILES = {
    "an import that fails": (
        "import no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module' (op.py:1)",
    ),
    "no Python": ("def (", "SyntaxError: invalid syntax (op.py, line 1)"),
    "a name that is taken": (
        "from opbox_ops import register\nregister('FullyConnected')",
        "operator 'FullyConnected' is registered already; use extend('FullyConnected') to add to it "
        "(it is of fully_connected.py) (op.py:2)",
    ),
    "a rule that there is not": (
        "from opbox_ops import register\n\nregister('op_one').infershape",
        "AttributeError: 'Op' object has no attribute 'infershape' (op.py:3)",
    ),
}


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_server_does_not_start_with_a_file_that_does_not_load(isolation: str, tmp_path: Path) -> None:
    text, says = FILES["an import that fails"]
    (tmp_path / "op.py").write_text(text)
    done = serve(tmp_path, "--isolation", isolation, "--ops", "op.py")
    assert done.returncode == 1
    assert f"opbox serve: operators of {tmp_path / 'op.py'}: {says}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_does_not_load(what: str, tmp_path: Path) -> None:
    text, says = FILES[what]
    (tmp_path / "op.py").write_text(text)
    registry.get("FullyConnected")  # operators are loaded when they are first asked for
    try:
        with pytest.raises(BadRequestError) as caught:
            load_plugin(tmp_path / "op.py")
    finally:
        if "op_one" in registry.names():
            registry.unregister("op_one")
    assert caught.value.message == f"operators of {tmp_path / 'op.py'}: {says}"


def test_every_file_is_loaded_however_often_the_option_is_given(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(OPERATOR.format(name="op_same"))
    done = serve(tmp_path, "--ops", "one.py", "--ops", "two.py")
    assert "two.py: operator 'op_same' is registered already; use extend('op_same') to add to it (it is of one.py)" in (
        done.stderr
    )


def test_an_installed_package_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "broken_package.py").write_text("from opbox_ops import no_such_name\n")
    metadata = tmp_path / "opbox_broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: opbox-broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[opbox.ops]\nbroken = broken_package\n")
    done = serve(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert done.returncode == 1
    assert "operator package opbox-broken (entry point broken = broken_package): ImportError" in done.stderr
    assert "(broken_package.py:1)" in done.stderr


@pytest.mark.parametrize(("folders", "files"), [(0o755, 0o644), (0o700, 0o644), (0o755, 0o600)])
def test_a_path_from_the_folder_of_the_server_serves_sessions_with_code(
    folders: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session with code may run as another user, whom neither a private folder nor a private file keeps from it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "op.py").write_text(OPERATOR.format(name="op_doubled"))
        Path(folder, "op.py").chmod(files)
        Path(folder).chmod(folders)
        monkeypatch.chdir(folder)
        live = Live("process", Path(folder), OPBOX_OPS='["op.py"]')
        try:
            doubled = {"do": "invoke", "op": "op_doubled", "inputs": [1], "outputs": [2]}
            put, fetch = {"do": "put", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 2, "as": "y"}
            answer = live.session("py", code=True).run(put, doubled, fetch, x=np.ones(2, np.float32))
            assert answer.status == 200, answer.header
            assert answer.tensors["y"].tolist() == [2, 2]
        finally:
            live.stop()


def test_private_files_of_one_name_are_two(tmp_path: Path) -> None:
    names = ("op_of_ann", "op_of_bob")
    for name in names:
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "op.py").write_text(OPERATOR.format(name=name))
    live = Live("process", tmp_path, OPBOX_OPS=json.dumps([str(tmp_path / name / "op.py") for name in names]))
    try:
        runs = [{"do": "invoke", "op": name, "inputs": [1], "outputs": [2 + i]} for i, name in enumerate(names)]
        put = {"do": "put", "id": 1, "tensor": "x"}
        answer = live.session("py", code=True).run(put, *runs, x=np.ones(2, np.float32))
        assert answer.status == 200, answer.header
    finally:
        live.stop()


BROKEN = """
from opbox_ops import register

op = register({name!r})

@op.infer_shape
def _(p, ins, outs):
    {rule}

@op.compute()
def _(p, ctx, inputs, outputs):
    raise ValueError("computing failed")
"""


@pytest.mark.parametrize(
    ("name", "rule", "says"),
    [
        (
            "op_bad_rule",
            "raise RuntimeError('no such shape')",
            "rule failed on .*: RuntimeError: no such shape .op.py:8.",
        ),
        ("op_bad_compute", "outs.merge(0, ins[0])", "the operator failed: ValueError: computing failed .op.py:12."),
    ],
)
def test_what_fails_in_an_operator_is_told_with_its_line(name: str, rule: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "op.py"
    path.write_text(BROKEN.format(name=name, rule=rule))
    load_plugin(path)
    try:
        mx.refresh_operators()
        with pytest.raises(mx.MXNetError, match=f"{name}: the operator.*{says}|{name}: {says}"):
            getattr(mx.nd, name)(mx.nd.ones((2,))).asnumpy()
        if "rule" in name:
            with pytest.raises(mx.MXNetError, match=says):
                getattr(mx.sym, name)(mx.sym.Variable("x")).infer_shape(x=(2,))
    finally:
        registry.unregister(name)


def opbox(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command `opbox` in a folder, with the engine in its process unless `env` names a server."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    command = [sys.executable, "-m", "opbox.cli", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**inherited, **env}
    )


def test_the_command_runs_the_operators_of_a_file_of_a_package_and_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(OPERATOR.format(name="op_doubled"))
    run = ("run", "op_doubled", "data=ones:2,3")
    node = {"op": "op_doubled", "name": "twice", "inputs": [[0, 0, 0]]}
    graph = {"nodes": [{"op": "null", "name": "data", "inputs": []}, node], "arg_nodes": [0], "heads": [[1, 0, 0]]}
    (tmp_path / "net.json").write_text(json.dumps(graph))
    shapes = ("infer-shape", "net.json", "data=2,3")

    def check(*options: str, **env: str) -> None:
        output, saved = opbox(tmp_path, *run, *options, **env), opbox(tmp_path, *shapes, *options, **env)
        assert "op_doubled_output" in output.stdout, output.stderr
        assert "twice_output" in saved.stdout, saved.stderr

    check("--ops", "op.py")
    refused = opbox(tmp_path, *run)
    assert refused.returncode == 1
    assert "run: expected a file or an operator, got 'op_doubled', which is neither" in refused.stderr
    refused = opbox(tmp_path, *run, "--ops", "op.py", OPBOX_URL="http://127.0.0.1:1")
    assert refused.returncode == 2
    assert "--ops: expected the engine in this process, got the server at http://127.0.0.1:1" in refused.stderr
    live = Live("none", tmp_path, OPBOX_OPS=json.dumps([str(tmp_path / "op.py")]))
    try:
        check(OPBOX_URL=live.url, OPBOX_TOKEN=TOKENS["ann"])
    finally:
        assert live.stop() == 0
    metadata = tmp_path / "opbox_doubled-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: opbox-doubled\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[opbox.ops]\ndoubled = op\n")
    check(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
