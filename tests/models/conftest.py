"""A server with a folder of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.live import Live
from tests.models.folders import convolutional, perceptron, save
from tests.models.grpc_client import Calls, calls
from tests.models.uploads import INPUT, QUOTA

PATIENCE_S = 120.0


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models: without batching, with it, deep ones, with two versions, of one owner's, and one that is broken."""
    root = tmp_path_factory.mktemp("models")
    net, params = perceptron()
    save(root / "plain", net, params, INPUT)
    save(root / "batched", net, params, "max_batch = 8\nmax_queue = 40\n" + INPUT)
    deep, arguments, states = convolutional()
    save(root / "deep", deep, arguments, "max_batch = 8\n[inputs.data]\nshape = [-1, 1, 6, 6]\n", aux=states)
    for version in (1, 2):
        save(root / "versions" / str(version), *perceptron(float(version)))
    (root / "versions" / "model.toml").write_text('versions = "all"\n')
    save(root / "anns", net, params, 'owners = ["ann"]\n')
    (root / "anns" / "names.txt").write_text("cat\ndog\n")
    (root / "anns" / "model.toml").write_text('owners = ["ann"]\nlabels = "names.txt"\n')
    (root / "broken").mkdir()
    (root / "not a name").mkdir()
    return root


@pytest.fixture(scope="package")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's temporary folder."""
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="package")
def server(folder: Path, private: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with one worker that has loaded them."""
    settings = {"OPBOX_MODELS": str(folder), "OPBOX_SHARED_MEMORY": "own", "TMPDIR": str(private)}
    settings["OPBOX_GRPC_PORT"] = "0"
    live = Live("process", tmp_path_factory.mktemp("server"), **settings)
    loaded(live)
    yield live
    assert live.stop() == 0
    assert not list(private.glob("opbox-model-*"))


@pytest.fixture(scope="package")
def grpc_address(server: Live) -> str:
    """Where that server listens for gRPC."""
    return address_of(server)


@pytest.fixture(scope="package")
def call(grpc_address: str) -> Iterator[Calls]:
    """Calls that server by gRPC."""
    with calls(grpc_address) as client:
        yield client


def address_of(live: Live) -> str:
    """Where a server listens for gRPC, which it says in one of the next lines of its output."""
    assert live.process.stdout is not None
    return next(line for line in live.process.stdout if line.startswith("gRPC: ")).removeprefix("gRPC: ").strip()


@pytest.fixture(scope="package")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a worker, a state directory and models of its own, to which owners publish."""
    live = Live(
        "process",
        tmp_path_factory.mktemp("server"),
        OPBOX_MODELS=str(folder),
        OPBOX_STATE_DIR=str(tmp_path_factory.mktemp("state")),
        OPBOX_MAX_MODEL_BYTES=str(QUOTA),
        OPBOX_GRPC_PORT="0",
    )
    wait_until(lambda: index(live).get(("plain", "1"), ("", ""))[0] == "READY")
    yield live
    assert live.stop() == 0


def index(server: Live, owner: str = "ann") -> dict[tuple[str, str], tuple[str, str]]:
    """State and reason by model and version."""
    rows = server.clients[owner].post("/v2/repository/index").json()
    return {(row["name"], row["version"]): (row["state"], row["reason"]) for row in rows}


def loaded(server: Live) -> None:
    """Wait until the server has tried to load every model."""
    until = time.monotonic() + PATIENCE_S
    while any(reason == "not loaded" or state == "LOADING" for state, reason in index(server).values()):
        assert time.monotonic() < until
        time.sleep(0.05)


def remove_all(server: Live, owner: str) -> None:
    """Remove all that an owner has published."""
    client = server.clients[owner]
    names = {row["name"] for row in client.get("/v1/models").json()["models"] if row["owner"] == owner}
    for name in names:
        assert client.delete(f"/v1/models/{name}").status_code == 200


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)
