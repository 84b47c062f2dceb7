"""Published models in an object store: whole or not at all, within the quota, and nothing that no server wrote."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opbox_protocol.errors import BadRequestError, ConflictError, MXNetError, NotFoundError, NotReadyError, StorageError
from opbox_service.accounting.accounts import Accounts
from opbox_service.models.model_store import Publication
from opbox_service.models.object_models import ObjectModels
from opbox_service.models.repository import ModelRepository
from opbox_service.owner_files import folder_name
from opbox_service.settings import Settings
from opbox_service.store_threads import StoreThreads
from opbox_service.stored_objects import StoredObjects
from opbox_service.worker.model_publishing import ModelPublishing
from tests.models.uploads import files

FIRST, SECOND, THIRD = files(), files(2.0), files(3.0)
ANN = Publication("ann", "net", ("bob",))
Make = Callable[..., ObjectModels]


class Objects(StoredObjects):
    """A store whose requests may fail: those after so many, with an error of the network's."""

    rest: int | None = None
    answers_lost = False

    def _count(self) -> None:
        if self.rest is not None:
            self.rest -= 1
            if self.rest < 0:
                raise OSError(111, "Connection refused")

    def write(self, *arguments: Any) -> None:
        self._count()
        super().write(*arguments)

    def create(self, owner: str, name: str, content: bytes) -> None:
        self._count()
        super().create(owner, name, content)
        if self.answers_lost:  # and the request is servers again
            super().create(owner, name, content)

    def remove(self, owner: str, name: str) -> None:
        self._count()
        super().remove(owner, name)

    def read_in(self, folder: str, name: str) -> bytes:
        self._count()
        return super().read_in(folder, name)

    def rows(self, owner: str) -> Any:
        self._count()
        return super().rows(owner)

    def walk(self) -> Any:
        self._count()
        return super().walk()


@pytest.fixture(params=["memory", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a store of fsspec's."""
    fsspec = pytest.importorskip("fsspec")
    yield f"{request.param}://{tmp_path}/store/models"
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()


@pytest.fixture
def make(url: str, tmp_path: Path) -> Make:
    """Makes servers' ends of the store, each with copies of its own."""
    servers: list[ObjectModels] = []

    def models(max_model_bytes: int = 1 << 20, **times: Any) -> ObjectModels:
        terms = Settings(state_dir=tmp_path / f"state{len(servers)}", max_model_bytes=max_model_bytes)
        servers.append(ObjectModels(terms, Accounts(terms), Objects(url), **times))
        return servers[-1]

    return models


def objects_of(models: ObjectModels) -> Objects:
    objects = models._objects
    assert isinstance(objects, Objects)
    return objects


def names(models: ObjectModels, owner: str = "ann") -> list[str]:
    return sorted(row.name for row in StoredObjects.rows(objects_of(models), owner))


def copy_of(models: ObjectModels, number: int) -> dict[str, bytes]:
    folder = models.fetch("ann", "net", number)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "published.json"}


def rewrite(models: ObjectModels, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a document as somebody does who can write to the store."""
    objects = objects_of(models)
    document = json.loads(objects.read("ann", name))
    change(document)
    objects.write("ann", name, lambda file: file.write(json.dumps(document).encode()) and None)


def test_what_one_server_publishes_another_has(make: Make) -> None:
    first, second = make(part_bytes=100), make()
    assert second.all() == []
    assert first.save(ANN, FIRST) == 1
    assert second.save(ANN, SECOND) == 2
    assert first.all() == second.all() == [("ann", "net")]
    assert (copy_of(second, 1), copy_of(first, 2)) == (FIRST, SECOND)
    folder = second.fetch("ann", "net", 1)
    assert second.publication(folder) == ANN
    assert len(names(first)) > 10, "the files lie in parts of 100 bytes"
    with pytest.raises(ConflictError, match="expected more than 2, which is there, got 2"):
        first.save(ANN, FIRST, 2)
    assert first.save(ANN, THIRD, 7) == 7
    before = second.stamps("ann", "net")
    assert first.prune("ann", "net") == [2, 7]
    assert sorted(second.versions("ann", "net")) == [2, 7]
    assert {number: before[number] for number in (2, 7)} == second.stamps("ann", "net")
    with pytest.raises(NotFoundError):
        second.fetch("ann", "net", 1)
    second.remove("ann", "net")
    assert names(first) == []
    first.remove("ann", "..")
    assert first.versions("ann", "net") == {}
    assert first.all() == []


def test_a_copy_is_checked_and_goes_when_nothing_uses_it(make: Make) -> None:
    first, second = make(), make(unused_s=-1.0)
    first.save(ANN, FIRST)
    folder = second.fetch("ann", "net", 1)
    assert second.fetch("ann", "net", 1) == folder
    (folder / "net.params").write_bytes(b"rot")
    second._sound.clear()  # as after a restart
    assert copy_of(second, 1) == FIRST
    second.drop_copies({str(folder)})
    assert folder.is_dir()
    second.drop_copies(())
    assert not folder.exists()
    assert copy_of(second, 1) == FIRST


def test_the_quota_is_one_over_all_servers(make: Make) -> None:
    size = sum(map(len, FIRST.values()))
    first, second = make(max_model_bytes=2 * size), make(max_model_bytes=2 * size)
    first.save(ANN, FIRST)
    second.save(Publication("ann", "other"), FIRST)
    with pytest.raises(StorageError, match=f"expected at most {2 * size} bytes of an owner's models, got {2 * size}"):
        first.save(Publication("ann", "third"), FIRST)
    assert second.save(Publication("bob", "net"), FIRST) == 1
    second.all_stamps()
    assert 2 * size < second.used("ann") < 3 * size, "the files once, and two documents"
    second.remove("ann", "other")
    assert first.save(Publication("ann", "third"), FIRST) == 1
    with pytest.raises(StorageError, match="expected none, as your quota is 0 bytes"):
        make(max_model_bytes=0).save(ANN, FIRST)


def test_two_that_upload_at_a_time_do_not_both_exceed_the_quota(make: Make, url: str) -> None:
    size = sum(map(len, FIRST.values()))
    first, second = make(max_model_bytes=2 * size), make(max_model_bytes=2 * size)
    first.save(ANN, FIRST)

    class Meanwhile(Objects):
        """Another server uploads between this one's look and its document."""

        begun = False

        def write(self, *arguments: Any) -> None:
            super().write(*arguments)
            if not self.begun:
                self.begun = True
                with pytest.raises(StorageError):
                    second.save(Publication("ann", "other"), FIRST)

    first._objects = Meanwhile(url)
    assert first.save(Publication("ann", "third"), FIRST) == 1
    assert second.all() == [("ann", "net"), ("ann", "third")]


@pytest.mark.parametrize("lost", range(8))
def test_nothing_is_half_there_when_the_store_goes_away(make: Make, lost: int) -> None:
    first, second = make(), make()
    first.save(ANN, FIRST)
    objects_of(first).rest = lost
    number = 2
    with contextlib.suppress(NotReadyError):
        assert first.save(ANN, SECOND) == 2
        lost = 1000
    objects_of(first).rest = None
    if lost < 1000:
        there = second.versions("ann", "net")
        assert set(there) <= {1, 2}
        number = first.save(ANN, SECOND)
        assert number == max(there) + 1
    assert copy_of(second, number) == SECOND
    assert copy_of(second, 1) == FIRST
    objects_of(first).rest = 0
    for ask in (first.all_stamps, lambda: first.remove("ann", "net"), lambda: first.fetch("ann", "net", 1)):
        with pytest.raises(
            NotReadyError, match=r"the store cannot be reached \(Connection refused\): try again"
        ) as refused:
            ask()
        assert refused.value.status == 503


def test_an_answer_that_is_lost_makes_no_second_version(make: Make) -> None:
    models = make()
    objects_of(models).answers_lost = True
    assert models.save(ANN, FIRST) == 1
    assert list(models.versions("ann", "net")) == [1]


def test_what_a_crashed_server_left_goes(make: Make) -> None:
    models = make()
    models.save(ANN, FIRST)
    part = f"net@{'0' * 16}.0.part"
    objects_of(models).write("ann", part, lambda file: file.write(b"half") and None)
    models.save(ANN, SECOND)
    assert part in names(models), "it may be another server's upload"
    make(draft_s=-1.0).save(ANN, THIRD)
    assert part not in names(models)
    assert copy_of(models, 1) == FIRST


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another owner": (lambda d: d.update(owner="bob"), "expected the owner's document"),
    "another name": (lambda d: d.update(name="other"), "expected a document that a server wrote"),
    "a path": (lambda d: d["files"][0].__setitem__(0, "../net-symbol.json"), "expected a document that a server"),
    "a strange file": (lambda d: d["files"][0].__setitem__(0, "setup.py"), "expected a document that a server"),
    "a file twice": (lambda d: d["files"].append(d["files"][0]), "expected a document that a server"),
    "another hash": (lambda d: d["files"][0].__setitem__(2, "0" * 64), "expected bytes of SHA-256 000000000000"),
    "no hash": (lambda d: d["files"][0].__setitem__(2, "x"), "expected a document that a server"),
    "another size": (lambda d: d["files"][0].__setitem__(1, 1 << 60), "expected parts of"),
    "a negative size": (lambda d: d["files"][0].__setitem__(1, -1), "expected a document that a server"),
    "many parts": (lambda d: d.update(parts=1 << 60), "expected a document that a server"),
    "absent parts": (lambda d: d.update(parts=3), "expected 3 parts, got 2 of them missing"),
    "a draft's path": (lambda d: d.update(draft="../../../bob/x"), "expected a document that a server"),
    "callers": (lambda d: d.update(callers=[1]), "expected a document that a server"),
    "labels": (lambda d: d.update(labels="/etc/passwd"), "expected a document that a server"),
    "a later form": (lambda d: d.update(form="opbox-model-2"), "expected a document that a server"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_documents(make: Make, forged: str) -> None:
    first, second = make(), make()
    first.save(ANN, FIRST)
    first.save(ANN, SECOND)
    change, sentence = FORGED[forged]
    rewrite(first, "net@2.json", change)
    with pytest.raises(BadRequestError, match=f"model 'net', version 2: damaged in the store: .*{sentence}"):
        second.fetch("ann", "net", 2)
    assert copy_of(second, 1) == FIRST
    assert second.all() == [("ann", "net")]
    second.remove("ann", "net", 2)
    assert list(first.versions("ann", "net")) == [1]


def test_broken_objects(make: Make) -> None:
    first, second = make(), make()
    first.save(ANN, FIRST)
    (part,) = (name for name in names(first) if name.endswith(".part"))
    content = objects_of(first).read("ann", part)
    for wrong, sentence in ((content[:-1], "expected parts of"), (b"x" + content[1:], "expected bytes of SHA-256")):
        objects_of(first).write("ann", part, lambda file, wrong=wrong: file.write(wrong) and None)  # type: ignore[misc]
        with pytest.raises(BadRequestError, match=sentence):
            second.fetch("ann", "net", 1)
    assert not list(Path(second._folders.path).rglob("net.params"))
    for text in (b"", b"[", b"[]", b"[" * 20_000, b"\xff", b'{"form": 1}', b" " * (1 << 20) + b"{}"):
        objects_of(first).write("ann", "net@2.json", lambda file, text=text: file.write(text) and None)  # type: ignore[misc]
        with pytest.raises(BadRequestError, match="model 'net', version 2: damaged in the store"):
            second.fetch("ann", "net", 2)
    objects_of(first).write(
        "eve", "net@1.json", lambda file: file.write(objects_of(first).read("ann", "net@1.json")) and None
    )
    objects_of(first).write("ann", "stray", lambda file: file.write(b"x") and None)
    assert make().all() == [("ann", "net")], "a document in another owner's folder is nobody's"
    with pytest.raises(MXNetError):
        second.fetch("eve", "net", 1)


def test_a_full_disk_here_is_told_of(make: Make) -> None:
    first, second = make(), make()
    first.save(ANN, FIRST)
    second._folders.path.mkdir(parents=True, exist_ok=True)
    (second._folders.path / folder_name("ann")).write_text("in the way")
    with pytest.raises(StorageError, match="no copy can be written here"):
        second.fetch("ann", "net", 1)


def test_a_store_that_goes_away_before_a_version_is_loaded(make: Make) -> None:
    """Whoever published it is told that it may be served later."""
    models = make()

    class Serving:
        """Serves nothing: a server whose store goes away while it loads."""

        repository = ModelRepository(None, models)

        async def load(self, name: str) -> None:
            objects_of(models).rest = 0
            self.repository.find(name)

    serving: Any = Serving()
    publishing = ModelPublishing(serving, models, StoreThreads(), lambda *event, **fields: None)
    with pytest.raises(NotReadyError, match=r"model 'net', version 1: stored, but not loaded .*: publish again then"):
        asyncio.run(publishing.publish(ANN, FIRST))
    objects_of(models).rest = None
    assert copy_of(models, 1) == FIRST
