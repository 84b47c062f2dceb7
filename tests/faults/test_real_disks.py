"""Disks that are full and shared memory that is not there, really: in a mount namespace of the server's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import StorageError
from tests.contract.live import IDENTITY, TOKENS, Live
from tests.models.folders import FEATURES, expected
from tests.models.uploads import files

X = np.ones(1 << 18, np.float32)
"""1 MiB: a body of that size travels in shared memory."""
UNSHARE = ("unshare", "--mount", "--propagation", "private")


def permitted() -> bool:
    """Whether this process may make mount namespaces, and mount in them."""
    try:
        mounting = [*UNSHARE, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        return subprocess.run(mounting, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not permitted(), reason="unshare --mount is not permitted here")


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """Start a server behind some mounts: mounted("mount -t tmpfs …", OPBOX_STATE_DIR="…")."""
    servers: list[Live] = []

    def begin(mounts: str, **settings: str) -> Live:
        shell = tmp_path / "python"
        inner = f'{mounts} && exec {sys.executable} "$@"'
        shell.write_text(f"#!/bin/sh\nexec {' '.join(UNSHARE)} sh -c '{inner}' python \"$@\"\n")
        shell.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(shell))
            servers.append(Live("process", tmp_path, **settings))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def trains_and_answers(server: Live) -> None:
    answer = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X})
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(answer.tensors["y_output"], X)
    session = server.session()
    puts = [{"do": "put", "id": id, "tensor": "x"} for id in (1, 2)]
    step = {"do": "update", "op": "sgd_update", "attrs": {"lr": 0.5}, "calls": [{"inputs": [1, 2]}]}
    trained = session.run(*puts, step, {"do": "fetch", "id": 1, "as": "w"}, x=X)
    assert trained.status == 200, trained.header
    np.testing.assert_array_equal(trained.tensors["w"], X / 2)
    code = server.session("py")
    assert code.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200
    assert code.run({"do": "fetch", "id": 1, "as": "x"}).status == 200


@pytest.mark.parametrize(
    "mounts",
    [
        "mount -t tmpfs -o ro tmpfs /dev/shm",
        "mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /dev/shm",
        "mount --bind /proc/self/fdinfo /dev/shm",
    ],
    ids=["read-only", "without room", "no such place"],
)
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm to be hidden")
def test_a_server_without_dev_shm_trains_and_answers(mounted: Callable[..., Live], mounts: str) -> None:
    server = mounted(mounts)
    place = Path(f"/proc/{server.process.pid}/root/dev/shm/opbox-test")
    with pytest.raises(OSError):
        place.write_bytes(b"x" * 8192)
    trains_and_answers(server)
    assert server.stop() == 0


def test_a_disk_that_is_full_fails_a_checkpoint_and_nothing_else(mounted: Callable[..., Live], tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    server = mounted(f"mount -t tmpfs -o size=3m tmpfs {state}", OPBOX_STATE_DIR=str(state))
    session = server.session()
    save = {"do": "checkpoint", "name": "run", "arrays": {"x": 1}, "step": 1}
    small = np.arange(4, dtype=np.float32)
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, save, x=small).status == 200
    large = np.ones(4 << 20, np.float32)
    full = session.run({"do": "put", "id": 2, "tensor": "x"}, {**save, "arrays": {"x": 2}, "step": 2}, x=large)
    assert (full.status, full.header["type"], "the last one stays" in full.error) == (507, "StorageError", True)
    trains_and_answers(server)
    restored = server.session().run({"do": "restore", "name": "run"}, {"do": "fetch", "id": 1, "as": "x"})
    assert restored.status == 200, restored.header
    np.testing.assert_array_equal(restored.tensors["x"], small)
    assert server.stop() == 0


def test_a_disk_that_is_full_keeps_a_new_version_out_and_the_old_one_serves(
    mounted: Callable[..., Live], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    server = mounted(f"mount -t tmpfs -o size=1m tmpfs {state}", OPBOX_STATE_DIR=str(state))
    x = np.ones((2, FEATURES), np.float32)
    with mx.serve.Client(server.url, TOKENS["ann"]) as client:
        client.publish("net", files())
        with pytest.raises(StorageError, match=r"No space left on device.*: the versions that are there stay"):
            client.publish("net", {**files(2.0), "labels.txt": b"class\n" * 170_000})
        (output,) = client.model("net")(data=x).values()
        np.testing.assert_array_equal(output, expected(x))
        client.publish("net", files(2.0))  # nothing of the refused one takes up space
        (output,) = client.model("net")(data=x).values()
        np.testing.assert_array_equal(output, expected(x, 2.0))
    trains_and_answers(server)
    assert server.stop() == 0
