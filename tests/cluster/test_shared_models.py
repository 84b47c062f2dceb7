"""A model that is published on one server is on all that share the store, and goes from all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import ModelNotReadyError, MXNetError, UnknownModelError
from opbox_service.owner_files import folder_name
from tests.cluster.test_recovery import kill
from tests.contract.live import TOKENS, Live
from tests.models.conftest import index, wait_until
from tests.models.folders import FEATURES, expected
from tests.models.uploads import files

Start = Callable[[], Live]
X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture(params=["file", "local"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts servers that share a store: a folder, or one that fsspec has as it has an object store."""
    running: list[Live] = []

    def server() -> Live:
        folder = tmp_path / f"node{len(running)}"
        folder.mkdir()
        shared = {"OPBOX_STORE_URL": f"{request.param}://{tmp_path}/store", "OPBOX_STATE_DIR": str(folder / "state")}
        running.append(Live("process", folder, **shared))
        return running[-1]

    yield server
    for live in running:
        live.stop()


def serves(server: Live, owner: str, name: str, scale: float) -> bool:
    """Whether a server answers a call for a model as its version of that scale does."""
    with mx.serve.Client(server.url, TOKENS[owner]) as client:
        try:
            (output,) = client.model(name)(data=X).values()
        except (UnknownModelError, ModelNotReadyError):
            return False
        return np.array_equal(output, expected(X, scale))


def test_all_servers_have_what_one_got(start: Start) -> None:
    first, second = start(), start()
    with mx.serve.Client(first.url, TOKENS["ann"]) as ann:
        ann.publish("net", files(), to="bob")
        wait_until(lambda: serves(second, "bob", "ann.net", 1.0))
        assert not serves(second, "py", "ann.net", 1.0), "it is not published to them"
        assert ("ann.net", "1") not in index(second, "py")
        ann.publish("net", files(2.0))
        wait_until(lambda: serves(second, "ann", "net", 2.0))
        assert not serves(second, "bob", "ann.net", 2.0), "it is bob's no more"
    with mx.serve.Client(second.url, TOKENS["ann"]) as ann:
        assert ann.publish("net", files(3.0))["version"] == "3"
        wait_until(lambda: serves(first, "ann", "net", 3.0))
        usage = [server.json("GET", "/v1/usage").header["quotas"]["model_bytes"] for server in (first, second)]
        assert usage[0] == usage[1]
        ann.remove("net", 3)
        wait_until(lambda: serves(first, "ann", "net", 2.0))
    kill(first)
    assert serves(second, "ann", "net", 2.0)
    third = start()
    wait_until(lambda: serves(third, "ann", "net", 2.0))
    with mx.serve.Client(third.url, TOKENS["ann"]) as ann:
        ann.remove("net")
    wait_until(lambda: ("net", "2") not in index(second))
    assert not serves(second, "ann", "net", 2.0)


@pytest.mark.parametrize("start", ["local"], indirect=True)
def test_a_store_that_is_away_or_damaged_stops_nothing(start: Start, tmp_path: Path) -> None:
    first, second = start(), start()
    store = tmp_path / "store"
    with mx.serve.Client(first.url, TOKENS["ann"]) as ann:
        ann.publish("net", files())
        wait_until(lambda: serves(second, "ann", "net", 1.0))
        ann.publish("net", files(2.0))
        wait_until(lambda: serves(second, "ann", "net", 2.0))
        folder = store / "models" / folder_name("ann")
        document = (folder / "net@2.json").read_text()
        (folder / "net@3.json").write_text(document.replace('"owner": "ann"', '"owner": "bob"'))
        wait_until(lambda: "damaged in the store" in index(second).get(("net", "3"), ("", ""))[1])
        assert serves(second, "ann", "net", 2.0)
        (folder / "net@3.json").unlink()
        wait_until(lambda: ("net", "3") not in index(second))

        shutil.move(store, tmp_path / "aside")  # as a file system that is mounted no more
        store.mkdir()
        with pytest.raises(MXNetError, match="the store cannot be reached") as refused:
            ann.publish("other", files())
        assert refused.value.status == 503
        wait_until(lambda: "what other servers publish is not seen" in Path(second.log.name).read_text())
        assert serves(first, "ann", "net", 2.0)
        assert serves(second, "ann", "net", 2.0)
        store.rmdir()
        shutil.move(tmp_path / "aside", store)
        ann.publish("other", files())
    wait_until(lambda: serves(second, "ann", "other", 1.0))
    assert serves(second, "ann", "net", 2.0)
