"""A backup of a live server whose sessions save checkpoints and whose owners publish models meanwhile."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import opbox as mx
from opbox_service.backup.restoring import restore
from opbox_service.backup.writing import back_up
from tests.contract.live import TOKENS, Live
from tests.contract.test_restart import Callers
from tests.models.conftest import wait_until
from tests.models.folders import FEATURES, expected
from tests.models.uploads import files

SIZE = 1 << 16
X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
RESTORED = [{"do": "restore", "name": "run", "arrays": {"a": 1, "b": 2}}, {"do": "fetch", "id": 1, "as": "a"}]


def test_a_backup_under_load_is_whole(start: Callable[..., Live], tmp_path: Path) -> None:
    """Both arrays of a checkpoint are of one step, and a model answers as one of its versions."""
    state = tmp_path / "state"
    server = start("process", OPBOX_STATE_DIR=str(state))
    sessions = [server.session() for _ in range(2)]
    steps = [itertools.count(1) for _ in sessions]
    client = mx.serve.Client(server.url, TOKENS["ann"])
    client.publish("net", files(1.0))
    scales = itertools.count(2)

    def work(number: int) -> None:
        if number == 2:
            client.publish("net", files(float(next(scales))))
            return
        step = float(next(steps[number]))
        puts = [{"do": "put", "id": id, "tensor": name} for id, name in ((1, "a"), (2, "b"))]
        name = "run" if number == 0 else "other"
        save = {"do": "checkpoint", "name": name, "arrays": {"a": 1, "b": 2}}
        array = np.full(SIZE, step, np.float32)
        answer = sessions[number].run(*puts, save, {"do": "free", "ids": [1, 2]}, a=array, b=array)
        assert answer.status == 200, answer.header

    callers = Callers(work)
    try:
        for number in range(4):
            before = callers.calls
            wait_until(lambda before=before: callers.errors or callers.calls > before + 3)  # type: ignore[misc]
            report = back_up(state, tmp_path / f"{number}.tar")
            assert report.files["checkpoints"] >= 1
            assert report.absent == []
    finally:
        callers.stop()
    client.close()
    done = subprocess.run(
        [sys.executable, "-m", "opbox.cli", "restore", str(tmp_path / "3.tar"), "--replace", "--state-dir", str(state)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "expected a directory that nobody uses, got one in use by a server" in done.stderr
    assert server.stop() == 0
    for number in range(4):
        restore(tmp_path / f"{number}.tar", tmp_path / f"state-{number}")
        for file in (tmp_path / f"state-{number}").rglob("published.json"):
            assert json.loads(file.read_bytes())["name"] == "net"
            assert len(list(file.parent.iterdir())) == 4
    again = start("process", OPBOX_STATE_DIR=str(tmp_path / "state-3"))
    session = again.session()
    answer = session.run(*RESTORED, {"do": "fetch", "id": 2, "as": "b"})
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(answer.tensors["a"], answer.tensors["b"])
    assert len(set(answer.tensors["a"].tolist())) == 1
    with mx.serve.Client(again.url, TOKENS["ann"]) as after:
        wait_until(lambda: after.model("net").ready())
        (output,) = after.model("net")(data=X).values()
    assert any(np.array_equal(output, expected(X, float(scale))) for scale in range(1, next(scales)))
    assert again.json("GET", "/v1/usage").header["days"]


def test_a_server_starts_on_a_backup_whose_owners_files_are_none(start: Callable[..., Live], tmp_path: Path) -> None:
    """Code can have anything kept; so can whoever wrote to the directory. Each is told of its own when it is read."""
    state = tmp_path / "state"
    server = start("process", OPBOX_STATE_DIR=str(state))
    session = server.session()
    save = {"do": "checkpoint", "name": "run", "arrays": {"a": 1}}
    assert session.run({"do": "put", "id": 1, "tensor": "a"}, save, a=X).status == 200
    with mx.serve.Client(server.url, TOKENS["ann"]) as client:
        client.publish("net", files(1.0))
    assert server.stop() == 0
    (owner,) = (path.name for path in (state / "checkpoints").iterdir())
    noise = b"\xff noise " * 1000
    for path in (path for path in state.rglob("*") if path.is_file() and owner in path.parts):
        path.write_bytes(noise)
    (state / "datasets" / owner / "named").mkdir(parents=True)
    (state / "datasets" / owner / "named" / "digits.json").write_bytes(noise)
    (state / "audit.log").write_bytes(noise)
    back_up(state, tmp_path / "noise.tar")
    restore(tmp_path / "noise.tar", tmp_path / "new")
    server = start("process", OPBOX_STATE_DIR=str(tmp_path / "new"))
    assert server.call("GET", "/v2/health/ready").status == 200
    answer = server.session().run(*RESTORED)
    assert answer.error == "checkpoint 'run': expected a file that this server wrote, got another"
    for route in ("/v1/checkpoints", "/v1/datasets", "/v1/models", "/v1/usage"):
        assert server.json("GET", route).status == 200, route
