"""Models that owners publish: shared or not, in versions, within a quota, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import (
    BadRequestError,
    ConflictError,
    ModelNotReadyError,
    MXNetError,
    NotFoundError,
    StorageError,
    UnknownModelError,
)
from opbox_service.accounting.accounts import Accounts
from opbox_service.models.model_store import FileModels, Publication, public_name
from opbox_service.settings import Settings
from tests.contract.live import TOKENS, Live
from tests.models.conftest import PATIENCE_S, remove_all, wait_until
from tests.models.folders import FEATURES, INDEX, expected, perceptron
from tests.models.uploads import INPUT, QUOTA, files, packed

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture
def ann(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["ann"]) as client:
        yield client
        remove_all(shared, "ann")


@pytest.fixture
def bob(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["bob"]) as client:
        yield client


def check(client: mx.serve.Client, name: str, scale: float = 1.0, version: str = "") -> None:
    (output,) = client.model(name, version)(data=X).values()
    np.testing.assert_array_equal(output, expected(X, scale))


def test_a_model_is_its_owners_until_it_is_shared(shared: Live, ann: mx.serve.Client, bob: mx.serve.Client) -> None:
    answer = ann.publish("net", files())
    assert {key: answer[key] for key in ("name", "full_name", "version", "callers")} == {
        "name": "net",
        "full_name": "ann.net",
        "version": "1",
        "callers": [],
    }
    check(ann, "net")
    check(ann, "ann.net")
    assert ann.model("net").metadata()["name"] == "net"
    for name in ("net", "ann.net"):
        with pytest.raises(UnknownModelError, match=f"'{name}' is not found: expected {INDEX}"):
            bob.model(name)(data=X)
    assert not [row for row in bob.models() if row["name"].endswith("net")]
    assert ann.publish("net", files(2.0), to="bob")["version"] == "2"
    check(bob, "ann.net", 2.0)
    assert [row["name"] for row in bob.models() if row["name"].endswith("net")] == ["ann.net"] * 2
    row = next(row for row in shared.clients["bob"].get("/v1/models").json()["models"] if row["state"] == "READY"
               and row["name"] == "ann.net")  # fmt: skip
    assert (row["owner"], row["callers"]) == ("ann", ["bob"])
    with mx.serve.Client(shared.url, TOKENS["py"]) as py:
        with pytest.raises(UnknownModelError):
            py.model("ann.net")(data=X)
        ann.publish("net", files(3.0), to="everyone")
        check(py, "ann.net", 3.0)
    with pytest.raises(NotFoundError, match="model 'net': expected one that you published"):
        bob.remove("net")


def test_memory_is_the_owners(shared: Live, ann: mx.serve.Client) -> None:
    def used() -> int:
        nbytes: int = shared.json("GET", "/v1/usage").header["now"]["memory_bytes"]
        return nbytes

    wait_until(lambda: used() == 0)  # what other tests removed
    ann.publish("net", files())
    check(ann, "net")
    wait_until(lambda: used() > 0)
    assert shared.json("GET", "/v1/usage").header["quotas"]["model_bytes"] == QUOTA


def test_versions_follow_each_other_and_old_ones_go(ann: mx.serve.Client) -> None:
    for number in range(1, 4):
        assert ann.publish("net", files(float(number)))["version"] == str(number)
        check(ann, "net", float(number))
    assert {row["version"]: row["state"] for row in ann.models() if row["name"] == "net"} == {
        "2": "UNAVAILABLE",
        "3": "READY",
    }
    with pytest.raises(ConflictError, match="version: expected more than 3, which is there, got 3"):
        ann.publish("net", files(), version=3)
    ann.remove("net", 3)  # back to the one before
    check(ann, "net", 2.0)
    assert ann.publish("net", files(7.0, 'versions = "all"\n'), version=7)["version"] == "7"
    check(ann, "net", 2.0, "2")
    with pytest.raises(NotFoundError, match="version: expected one of 2, 7, got 5"):
        ann.remove("net", 5)
    ann.remove("net")
    assert not [row for row in ann.models() if row["name"] == "net"]
    with pytest.raises(NotFoundError):
        ann.remove("net")


def test_a_version_that_cannot_be_loaded_leaves_the_old_one(shared: Live, ann: mx.serve.Client) -> None:
    ann.publish("net", files())
    with pytest.raises(BadRequestError, match=r"net\.params: expected .* more bytes"):
        ann.publish("net", {**files(2.0), "net.params": files(2.0)["net.params"][:-9]})
    check(ann, "net")
    rows = {row["version"]: (row["state"], row["reason"]) for row in ann.models() if row["name"] == "net"}
    assert rows["1"] == ("READY", "")
    assert rows["2"][0] == "UNAVAILABLE"
    assert "net.params" in rows["2"][1]
    assert ann.publish("net", files(2.0))["version"] == "2"
    check(ann, "net", 2.0)


MISTAKES: dict[str, tuple[Callable[[], dict[str, bytes]], str]] = {
    "nothing": (dict, "expected one NAME-symbol.json with one .params, or one .onnx file, .* got none"),
    "no parameters": (lambda: {"net-symbol.json": b"{}"}, "got net-symbol.json"),
    "another file": (lambda: {**files(), "setup.py": b""}, "got 'setup.py'"),
    "a path": (lambda: {**files(), "../x.params": b""}, "files: expected NAME-symbol.json"),
    "a hidden file": (lambda: {**files(), ".x.params": b""}, "files: expected NAME-symbol.json"),
    "two symbols": (lambda: {**files(), "b-symbol.json": b""}, "at most one .txt file, got net-symbol.json"),
    "no JSON": (lambda: {**files(), "net-symbol.json": b"nodes"}, "JSON"),
    "deep JSON": (lambda: {**files(), "net-symbol.json": b"[" * 20_000}, "JSON"),
    "no graph": (lambda: {**files(), "net-symbol.json": b"[1]"}, "expected"),
    "an unknown operator": (lambda: {**files(), "net-symbol.json": files()["net-symbol.json"].replace(
        b"FullyConnected", b"HalfConnected")}, "HalfConnected"),
    "no arrays": (lambda: {**files(), "net.params": b"\0" * 200}, "net.params: expected a file of arrays"),
    "too many arrays": (lambda: {**files(), "net.params": struct.pack("<QQQ", 0x112, 0, 1 << 62)}, "net.params"),
    "a large array": (lambda: {**files(), "net.params": struct.pack(
        "<QQQIiIqqiii", 0x112, 0, 1, 0xF993FAC9, 0, 2, 1 << 40, 1 << 40, 1, 0, 0)}, "net.params"),
    "another shape": (lambda: {**files(), "net.params": packed({"arg:fc1_weight": np.ones((2, 2))})}, "fc1"),
    "a stray array": (lambda: {**files(), "net.params": packed({"arg:fc9_weight": np.ones((2, 2))})}, "fc9_weight"),
    "no TOML": (lambda: files(toml="max_batch = ["), "model.toml: expected TOML"),
    "deep TOML": (lambda: files(toml="labels = " + "[" * 20_000), "model.toml: expected"),
    "a long number": (lambda: files(toml="max_batch = " + "9" * 9000), "model.toml"),
    "an unknown key": (lambda: files(toml="max_btch = 1"), "model.toml, line 1: unknown field 'max_btch'"),
    "owners": (lambda: files(toml='owners = ["bob"]'), "model.toml: owners: expected none"),
    "labels elsewhere": (lambda: files(toml='labels = "/etc/passwd"'), "labels: expected the name of a text file"),
    "absent versions": (lambda: files(toml="versions = [9]"), "versions: expected some of 1, got 9"),
    "a long model.toml": (lambda: files(toml="#" * 70_000), "model.toml: expected at most 65536 bytes, got 70000"),
    "no ONNX": (lambda: {"net.onnx": b"onnx"}, "net.onnx"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_files(ann: mx.serve.Client, mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(MXNetError, match=sentence) as raised:
        ann.publish("net", make())
    assert raised.value.status in (400, 422)
    with pytest.raises((UnknownModelError, ModelNotReadyError)):
        ann.model("net")(data=X)


@pytest.mark.parametrize(
    ("name", "header", "sentence"),
    [
        ("a.b", {}, "model 'a.b': expected a name of up to 64 letters, digits, dashes and underlines"),
        ("x" * 65, {}, "expected a name of up to 64"),
        ("net", {"version": 0}, "version: expected 1 or more, got 0"),
        ("net", {"callers": "bob"}, "callers: expected a list, got 'bob'"),
        ("net", {"callers": [1]}, "callers.0: expected an owner's name, got 1"),
        ("net", {"to": []}, "unknown field 'to'"),
    ],
)
def test_bad_requests(shared: Live, name: str, header: dict[str, Any], sentence: str) -> None:
    tensors = {file: np.frombuffer(data, np.uint8) for file, data in files().items()}
    answer = shared.call("PUT", f"/v1/models/{name}", header, tensors)
    assert answer.status == 400
    assert sentence in answer.error
    assert shared.call("PUT", "/v1/models/net", {}, {"net.onnx": np.ones(3, np.float32)}).status == 400
    monitor = shared.call("PUT", f"/v1/models/{name}", header, tensors, owner="monitor")
    assert monitor.status == 403


def test_names_of_the_servers_own_models_are_taken(ann: mx.serve.Client) -> None:
    with pytest.raises(ConflictError, match="model 'plain': expected a name that none of the server's own models has"):
        ann.publish("plain", files())


def test_the_quota(ann: mx.serve.Client) -> None:
    ann.publish("net", files())
    labels = b"x" * (QUOTA // 2)
    ann.publish("large", {**files(), "labels.txt": labels})
    with pytest.raises(StorageError, match=f"model 'larger': expected at most {QUOTA} bytes of an owner's models, got"):
        ann.publish("larger", {**files(), "labels.txt": labels})
    ann.remove("large")
    assert ann.publish("larger", {**files(), "labels.txt": labels})["bytes"] > QUOTA // 2


def test_labels_and_an_owners_load_and_unload(shared: Live, ann: mx.serve.Client, bob: mx.serve.Client) -> None:
    ann.publish("net", {**files(), "labels.txt": b"cat\ndog\nowl\n"}, to=["bob"])
    classes = bob.model("ann.net").infer({"data": X}, classes={"softmax_output": 1})["softmax_output"]
    assert {text.decode().split(":")[2] for text in classes[:, 0]} <= {"cat", "dog", "owl"}
    refused = shared.clients["bob"].post("/v2/repository/models/ann.net/unload")
    assert (refused.status_code, "expected a token with 'admin'" in refused.json()["error"]) == (403, True)
    assert shared.clients["ann"].post("/v2/repository/models/net/unload").status_code == 200
    with pytest.raises(BadRequestError, match="not ready: unloaded"):
        bob.model("ann.net")(data=X)
    assert shared.clients["ann"].post("/v2/repository/models/net/load").status_code == 200
    check(bob, "ann.net")
    assert shared.clients["boss"].post("/v2/repository/models/ann.net/unload").status_code == 200


def test_two_at_a_time(shared: Live, ann: mx.serve.Client) -> None:
    with ThreadPoolExecutor(4) as threads:  # of one client, on connections of their own
        answers = list(threads.map(lambda _: ann.publish("net", files(2.0)), range(4)))
    assert sorted(answer["version"] for answer in answers) == ["1", "2", "3", "4"]
    check(ann, "net", 2.0)


def test_calls_go_on_while_a_model_is_published_and_removed(
    shared: Live, ann: mx.serve.Client, bob: mx.serve.Client
) -> None:
    """Each answer is one version's; none comes once the model is gone."""
    ann.publish("net", files(), to="bob")
    values = [expected(X), expected(X, 2.0)]
    answered = threading.Event()
    ended: list[str] = []

    def call() -> None:
        model = bob.model("ann.net")
        try:
            while True:
                (output,) = model(data=X).values()
                assert any(np.array_equal(output, value) for value in values)
                answered.set()
        except (UnknownModelError, ModelNotReadyError) as error:
            ended.append(error.message)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for scale in (2.0, 1.0, 2.0):
        assert answered.wait(PATIENCE_S)
        answered.clear()
        ann.publish("net", files(scale), to="bob")
    ann.remove("net")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(ended) == 3
    gone = (INDEX, "not ready: unloaded")
    assert not [message for message in ended if not message.endswith(gone)]


def test_it_is_back_after_its_workers_end(shared: Live, ann: mx.serve.Client) -> None:
    ann.publish("net", files(2.0))
    (worker,) = shared.workers()
    os.kill(worker, signal.SIGKILL)
    psutil.Process(worker).wait(PATIENCE_S) if psutil.pid_exists(worker) else None
    check(ann, "net", 2.0)  # the client tries again while the next worker starts


def test_it_is_whole_after_a_kill_amid_an_upload(tmp_path: Path) -> None:
    """A server that is killed while a body comes serves, when it is back, what was published before."""
    state = {"OPBOX_STATE_DIR": str(tmp_path / "state")}
    first = Live("none", tmp_path, **state)
    with mx.serve.Client(first.url, TOKENS["ann"]) as client:
        client.publish("net", files(), to="bob")
    host, port = first.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        head = f"PUT /v1/models/net HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKENS['ann']}\r\n"
        sock.sendall(
            f"{head}Content-Length: 100000\r\nInference-Header-Content-Length: 200\r\n\r\n".encode() + b" " * 900
        )
        first.process.kill()
        first.process.wait()
    first.stop()
    draft = next((tmp_path / "state" / "models").iterdir()) / ".draft-0123456789abcdef"
    draft.mkdir()
    (draft / "net-symbol.json").write_text("{")  # as it is when a server ends amid writing
    second = Live("none", tmp_path, **state)
    with mx.serve.Client(second.url, TOKENS["bob"]) as client:
        wait_until(client.model("ann.net").ready)
        check(client, "ann.net")
    assert second.stop() == 0


def test_a_module_publishes_itself(shared: Live, ann: mx.serve.Client, tmp_path: Path) -> None:
    """With the shapes that it is bound to; an engine in the program's own process serves no models."""
    net, params = perceptron()
    before = connection.transport()
    mod = mx.mod.Module(net)
    with pytest.raises(AssertionError, match="publish: expected a module with parameters, got none"):
        mod.publish("net")
    mod.bind([("data", (5, FEATURES))], [("softmax_label", (5,))])
    mod.set_params(params, {})
    if not isinstance(before, HttpTransport):
        with pytest.raises(NotFoundError, match="expected a server, got an engine in this process"):
            mod.publish("net")
    mod.save_checkpoint(str(tmp_path / "net"), 1)
    program = (
        "import opbox as mx, sys\n"
        "mod = mx.mod.Module.load(sys.argv[1], 1)\n"
        f"mod.bind([('data', (5, {FEATURES}))], [('softmax_label', (5,))])\n"
        "print(mod.publish('net', to='everyone')['full_name'])\n"
    )
    ended = run(shared, [sys.executable, "-c", program, str(tmp_path / "net")])
    assert ended.stdout == "ann.net\n", ended.stderr
    assert ann.model("net").metadata()["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}]
    check(ann, "net")


def run(server: Live, command: list[str]) -> subprocess.CompletedProcess[str]:
    """A program that uses the server as ann."""
    environment = os.environ | {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS["ann"]}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_command(shared: Live, ann: mx.serve.Client, tmp_path: Path) -> None:
    def opbox(*words: str) -> str:
        ended = run(shared, [sys.executable, "-m", "opbox.cli", "models", *words])
        return ended.stdout + ended.stderr

    version = files(toml="")
    paths = [tmp_path / name for name in version]
    for path in paths:
        path.write_bytes(version[path.name])
    (tmp_path / "wanted.toml").write_text(INPUT)
    published = opbox("publish", "net", *map(str, paths), "--to", "bob", "--config", str(tmp_path / "wanted.toml"))
    assert published.splitlines()[0].startswith("published net, version 1 (")
    assert published.splitlines()[1] == "bob may call it as ann.net"
    line = next(line for line in opbox().splitlines() if line.startswith("net "))
    assert line.split()[:5] == ["net", "1", "READY", "ann", "bob"]
    paths[1].write_bytes(b"no parameters")
    assert "net.params: expected" in opbox("publish", "net", *map(str, paths))
    assert opbox("remove", "net") == "removed net\n"
    assert "model 'net': expected one that you published" in opbox("remove", "net")


def store(folder: Path) -> FileModels:
    settings = Settings(state_dir=folder)
    return FileModels(settings, Accounts(settings))


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from opbox_protocol.errors import StorageError
from tests.models.test_publish import files, store
from opbox_service.models.model_store import Publication
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
try:
    store(Path(sys.argv[1])).save(Publication("ann", "net"), files(2.0))
except StorageError as error:
    print(error.message)
"""


def test_a_disk_that_takes_no_more_leaves_nothing_behind(tmp_path: Path) -> None:
    models = store(tmp_path)
    assert models.save(Publication("ann", "net"), files()) == 1
    ended = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "model 'net': cannot be written (File too large): the versions that are there stay" in ended.stdout
    assert list(models.versions("ann", "net")) == [1]
    (owner,) = (tmp_path / "models").iterdir()
    assert [path.name for path in owner.iterdir()] == ["net"]


def test_what_stops_an_upload_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop() -> None:
        raise StorageError("stopped")

    models = store(tmp_path)
    with pytest.raises(StorageError, match="stopped"):
        models.save(Publication("ann", "net"), files(), go_on=stop)
    assert models.all() == []
    assert models.used("ann") == 0
    (owner,) = (tmp_path / "models").iterdir()
    assert not list(owner.iterdir())


def test_records_and_names(tmp_path: Path) -> None:
    models = store(tmp_path)
    published = Publication("a/b%2F.é", "net", None)
    models.save(published, files())
    assert models.all() == [("a/b%2F.é", "net")]
    assert public_name("a/b%2F.é", "net") == "a%2Fb%252F.é.net" == published.full_name
    (folder,) = models.versions("a/b%2F.é", "net").values()
    assert models.publication(folder) == published
    for record in ("{", "[]", "{}", json.dumps({"owner": 1})):
        (folder / "published.json").write_text(record)
        with pytest.raises(BadRequestError, match=r"published\.json"):
            models.publication(folder)
    assert models.all() == []
    assert models.versions("ann", "..") == {}
    models.remove("ann", "..")
