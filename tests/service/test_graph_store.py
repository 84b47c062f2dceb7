"""Graphs in a store that servers share: bounded in number, size and age, and nothing depends on them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opbox_ops import registry
from opbox_protocol.errors import NotFoundError
from opbox_protocol.symbol_json import content_hash
from opbox_service.graph_store import MAX_GRAPH_BYTES, BackgroundGraphs, FileGraphs, graphs_of
from opbox_service.owner_files import FolderFiles, OwnerFiles, folder_name
from opbox_service.settings import Settings
from opbox_service.stateless.graph_cache import GraphCache
from opbox_service.stored_objects import StoredObjects
from tests.service.test_graph_cache import document

KEYS = [f"{number:064x}" for number in range(4)]


@pytest.fixture(params=["folder", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnerFiles]:
    """A folder, or an object store."""
    if request.param == "folder":
        yield FolderFiles(tmp_path / "graphs")
        return
    fsspec = pytest.importorskip("fsspec")
    yield StoredObjects(f"memory://{tmp_path}/graphs")
    fsspec.filesystem("memory").store.clear()


def names(files: OwnerFiles, owner: str = "ann") -> set[str]:
    return {name.removesuffix(".json") for name, _, _ in files.listed(owner)}


def test_what_is_stored_is_there_for_its_owner(files: OwnerFiles) -> None:
    graphs = FileGraphs(files)
    assert graphs.load("ann", KEYS[0]) is None
    graphs.save("ann", KEYS[0], b"{}")
    graphs.save("ann", KEYS[0], b"[]")
    assert FileGraphs(files).load("ann", KEYS[0]) == b"{}", "it is written once"
    assert graphs.load("bob", KEYS[0]) is None
    for key in ("../x", "", "0" * 63, "A" * 64):
        graphs.save("ann", key, b"{}")
        assert graphs.load("ann", key) is None
    graphs.save("ann", KEYS[1], b" " * (MAX_GRAPH_BYTES + 1))
    assert names(files) == {KEYS[0]}


def test_they_are_bounded(files: OwnerFiles) -> None:
    few, small = FileGraphs(files, most=2), FileGraphs(files, most_bytes=25)
    for key in KEYS[:3]:
        few.save("ann", key, b" " * 10)
        time.sleep(0.01)  # so that their times differ
    assert names(files) == set(KEYS[1:3])
    small.save("ann", KEYS[3], b" " * 10)
    assert names(files) == set(KEYS[2:4])
    FileGraphs(files, age_s=-1.0).save("ann", KEYS[0], b"{}")
    assert names(files) == {KEYS[0]}


def test_a_store_that_is_away_is_not_asked_again_at_once(tmp_path: Path) -> None:
    place = FolderFiles(tmp_path / "graphs")
    graphs = FileGraphs(place)
    (tmp_path / "graphs" / folder_name("ann")).write_text("in the way")
    graphs.save("ann", KEYS[0], b"{}")
    os.unlink(tmp_path / "graphs" / folder_name("ann"))
    place.write("ann", f"{KEYS[0]}.json", lambda file: file.write(b"{}") and None)
    assert graphs.load("ann", KEYS[0]) is None
    assert FileGraphs(place).load("ann", KEYS[0]) == b"{}"


def test_only_servers_with_a_store_have_them(tmp_path: Path) -> None:
    assert graphs_of(Settings(state_dir=tmp_path)) is None
    graphs = graphs_of(Settings(store_url=f"file://{tmp_path}/store"))
    assert graphs is not None
    graphs.save("ann", KEYS[0], b"{}")
    assert (tmp_path / "store" / "graphs" / folder_name("ann") / f"{KEYS[0]}.json").read_bytes() == b"{}"


def test_no_call_waits_for_a_graph_to_be_stored(files: OwnerFiles) -> None:
    until, stored = threading.Event(), threading.Event()

    class Slow(FileGraphs):
        def save(self, owner: str, key: str, text: bytes) -> None:
            until.wait(60)
            super().save(owner, key, text)
            stored.set()

    graphs = BackgroundGraphs(Slow(files))
    for key in KEYS * 100:
        graphs.save("ann", key, b"{}")
    assert names(files) == set()
    until.set()
    assert stored.wait(60)
    assert graphs.load("ann", KEYS[0]) == b"{}"


def test_a_cache_that_lacks_a_graph_looks_into_the_store(files: OwnerFiles) -> None:
    registry.load()
    caches = [GraphCache(8, max_nodes=10, store=FileGraphs(files)) for _ in range(2)]
    key, _ = caches[0].put(document(), "ann")
    assert caches[1].resolve(f"sha256:{key}", "ann")[0] == key
    with pytest.raises(NotFoundError):
        caches[1].resolve(f"sha256:{key}", "bob")
    changed: dict[str, Any] = document("z")
    assert content_hash(changed) != key
    assert GraphCache(8, max_nodes=1, store=FileGraphs(files))._stored(key, "ann") is None, "it is too large there"
