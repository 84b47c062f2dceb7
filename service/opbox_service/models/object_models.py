"""ObjectModels: published models in an object store that several servers share, and this server's copies of them.

models/
  opbox.json                    says that this is a store of models, and no folder whose disk is not mounted
  0f3c…/                        an owner, by the hash of the name
    lenet@7c1d….0.part          bytes of a version's files, one behind the other, in parts
    lenet@3.json                a version: says which parts and which files, with their hashes

The parts come first. A version is there as soon as its document is, which one server alone can make. Copies are made
when a version is loaded, in the state directory: model-copies/0f3c…/lenet/3-8a51…
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from opbox_protocol.errors import BadRequestError, NotReadyError, StorageError

from ..accounting.accounts import Accounts
from ..owner_files import folder_name
from ..settings import Settings
from ..state_dir import StateFolder, sync_folder
from ..stored_objects import ObjectRow, StoredObjects
from .model_config import CONFIG_FILE
from .model_store import (
    DRAFT_S,
    PUBLISHED_NAME,
    RECORD,
    Buffer,
    FileModels,
    Publication,
    Stamps,
    check_config,
    check_quota,
    checked_files,
    next_version,
    no_published_model,
    write_file,
)
from .version_document import MAX_DOCUMENT, VersionDocument

__all__ = ["ObjectModels"]

PART_BYTES = 32 << 20
"""Bytes of a part: what is in memory at a time, and what is sent again after a connection broke."""
MARK = "opbox.json"
"""An object that every store has in which models have been published."""
UNUSED_S = 600.0
"""Seconds that a copy stays which nothing uses."""
DOCUMENT = re.compile(rf"({PUBLISHED_NAME})@([1-9]\d{{0,9}})\.json")
PART = re.compile(rf"({PUBLISHED_NAME})@([0-9a-f]{{16}})\.\d+\.part")


class ObjectModels(FileModels):
    """FileModels in an object store. Safe to call from many threads; servers change the store beside each other.

    Args:
        settings: the state directory, where copies are, and how many versions to keep.
        accounts: the quotas.
        objects: the folder of models in the store.
        part_bytes: bytes of a part.
        draft_s: age in seconds from which parts without a document are a crashed server's.
        unused_s: seconds that a copy stays which nothing uses.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        objects: StoredObjects,
        *,
        part_bytes: int = PART_BYTES,
        draft_s: float = DRAFT_S,
        unused_s: float = UNUSED_S,
    ) -> None:
        super().__init__(settings, accounts)
        self._folders = StateFolder(settings.state_dir, "model-copies")
        self._objects = objects
        self._part_bytes = part_bytes
        self._draft_s = draft_s
        self._unused_s = unused_s
        self._documents: dict[tuple[str, str], tuple[str, VersionDocument | None]] = {}
        self._owners: dict[str, str] = {}
        self._used: dict[str, int] | None = None
        self._sound: set[Path] = set()
        self._marked = False

    # -- writing --------------------------------------------------------------------------------------------------

    def save(
        self,
        publication: Publication,
        files: Mapping[str, Buffer],
        version: int | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> int:
        """See FileModels.

        Raises:
            NotReadyError: the store is not reached; nothing of the version is there then.
        """
        publication = checked_files(publication, files)
        owner, name = publication.owner, publication.name
        self._check_files(publication, files, go_on)
        document = VersionDocument.of(publication, files, secrets.token_hex(8), self._part_bytes)
        with self._locks.of(owner), _reached(f"model {name!r}"):
            self._check_mark(self._objects.is_marked(MARK))
            self._remove_drafts_of(owner)
            self._check_space(publication, document.nbytes)
            if not self._marked:
                self._objects.mark(MARK, b"{}")
                self._marked = True
            try:
                for part, content in zip(document.parts, _parts(files, self._part_bytes), strict=True):
                    go_on()
                    self._objects.write(owner, part, content.write_to)
                # Another server may have written meanwhile: it sees this one's parts, or this one sees its.
                self._check_space(publication, 0, drafts=True)
                number = self._place_document(document, version)
            except BaseException:
                self._withdraw(document)
                raise
        return number

    def _check_files(self, publication: Publication, files: Mapping[str, Buffer], go_on: Callable[[], None]) -> None:
        """BadRequestError where the files are not those of a model, by their names and by model.toml."""
        draft = self._draft(publication.owner)
        try:
            for name, data in files.items():
                write_file(draft / name, data if name == CONFIG_FILE else b"", go_on)
            check_config(draft)
        except OSError as error:
            raise StorageError(f"model {publication.name!r}: cannot be written ({error.strerror})") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _place_document(self, document: VersionDocument, version: int | None) -> int:
        """Make a version whose parts are there visible; return its number."""
        owner, name, text = document.publication.owner, document.publication.name, document.text()
        while True:
            number = next_version(name, self._numbers(owner, name), version)
            try:
                self._objects.create(owner, f"{name}@{number}.json", text)
            except FileExistsError:
                # Another server was faster; or this one, whose request was made again as its answer was lost.
                if self._objects.read(owner, f"{name}@{number}.json") != text:
                    continue
            return number

    def _withdraw(self, document: VersionDocument) -> None:
        """Remove what an upload that failed has left: first the document, should it be there all the same.

        If the store is not reached for that, the parts go with a later upload.
        """
        owner, name = document.publication.owner, document.publication.name
        with contextlib.suppress(OSError):
            for row, match in _documents(self._objects.rows(owner)):
                if match[1] == name and self._objects.read(owner, row.name) == document.text():
                    self._objects.remove(owner, row.name)
            for part in document.parts:
                self._objects.remove(owner, part)

    def _check_space(self, publication: Publication, size: int, *, drafts: bool = False) -> None:
        rows = self._objects.rows(publication.owner)
        sizes: dict[str, dict[int, int]] = {}
        unseen = sum(row.size for row in rows if PART.fullmatch(row.name))
        for row, match in _documents(rows):
            document = self._document(publication.owner, row)
            nbytes = 0 if document is None else document.nbytes
            sizes.setdefault(match[1], {})[int(match[2])] = nbytes
            unseen -= nbytes
        most = self._accounts.of(publication.owner).model_bytes
        check_quota(publication, size, sizes, most, self._keep, max(0, unseen) if drafts else 0)

    def _remove_drafts_of(self, owner: str) -> None:
        """Remove parts that a server which has crashed left of an upload."""
        rows = self._objects.rows(owner)
        late = time.time() - self._draft_s
        old = [(row, match) for row in rows if (match := PART.fullmatch(row.name)) and row.changed < late]
        if not old:
            return
        documents = [self._document(owner, row) for row, _ in _documents(rows)]
        if None in documents:  # whose parts nobody knows
            return
        drafts = {document.draft for document in documents if document is not None}
        for row, match in old:
            if match[2] not in drafts:
                self._objects.remove(owner, row.name)

    def remove(self, owner: str, name: str, version: int | None = None) -> None:
        """See FileModels. NotReadyError where the store is not reached."""
        if not re.fullmatch(PUBLISHED_NAME, name):
            return
        with self._locks.of(owner), _reached(f"model {name!r}"):
            going = []
            for row, match in _documents(self._objects.rows(owner)):
                if match[1] == name and version in (None, int(match[2])):
                    going.append((row, self._document(owner, row)))
            for row, _ in going:
                self._objects.remove(owner, row.name)
            for _, document in going:
                for part in document.parts if document is not None else ():
                    self._objects.remove(owner, part)

    # -- reading --------------------------------------------------------------------------------------------------

    def all(self) -> list[tuple[str, str]]:
        """See FileModels."""
        return sorted(self.all_stamps())

    def all_stamps(self) -> dict[tuple[str, str], Stamps]:
        """See FileModels; one listing of the store, and a look at the documents that are new."""
        stamps: dict[tuple[str, str], Stamps] = {}
        with _reached("models"):
            used: dict[str, int] = {}
            by_folder: dict[str, list[ObjectRow]] = {}
            for folder, row in self._objects.walk():
                by_folder.setdefault(folder, []).append(row)
                used[folder] = used.get(folder, 0) + row.size
            self._check_mark(MARK in (row.name for row in by_folder.pop("", [])))
            self._used = used
            for folder, rows in by_folder.items():
                owner = self._owner_of(folder, rows)
                for row, match in _documents(rows) if owner else ():
                    stamps.setdefault((owner, match[1]), {})[int(match[2])] = row.stamp
        there = {(folder, row.name) for folder, rows in by_folder.items() for row in rows}
        for key in self._documents.keys() - there:
            self._documents.pop(key, None)
        return stamps

    def _check_mark(self, is_there: bool) -> None:
        """OSError where the store has been there and is not any more, as a folder whose disk is not mounted."""
        if self._marked and not is_there:
            raise OSError(0, "it is empty, which it was not")
        self._marked = is_there

    def _owner_of(self, folder: str, rows: list[ObjectRow]) -> str:
        """Whose folder it is, as a document in it says; "" where none does that can be believed."""
        for row, match in _documents(rows):
            if folder in self._owners:
                break
            with contextlib.suppress(FileNotFoundError):
                text = self._objects.read_in(folder, row.name) if row.size <= MAX_DOCUMENT else b""
                with contextlib.suppress(BadRequestError):
                    publication = VersionDocument.parse(text, match[1]).publication
                    if folder_name(publication.owner) == folder:
                        self._owners[folder] = publication.owner
        return self._owners.get(folder, "")

    def stamps(self, owner: str, name: str) -> Stamps:
        """See FileModels."""
        with _reached(f"model {name[:80]!r}"):
            rows = self._objects.rows(owner)
        return {int(match[2]): row.stamp for row, match in _documents(rows) if match[1] == name}

    def versions(self, owner: str, name: str) -> dict[int, Path]:
        """See FileModels; a folder is there once `fetch` has made it, under another name."""
        return {number: self._folder(owner) / name / str(number) for number in self.stamps(owner, name)}

    def _numbers(self, owner: str, name: str) -> list[int]:
        return [int(match[2]) for _, match in _documents(self._objects.rows(owner)) if match[1] == name]

    def used(self, owner: str) -> int:
        """See FileModels; as the last listing had it, which is a few seconds old."""
        if self._used is None:
            self.all_stamps()
        return (self._used or {}).get(folder_name(owner), 0)

    def _document(self, owner: str, row: ObjectRow) -> VersionDocument | None:
        """What a version's document says; None where it is damaged. It is read once."""
        key = folder_name(owner), row.name
        stamp, document = self._documents.get(key, ("", None))
        if stamp != row.stamp:
            document = None
            with contextlib.suppress(BadRequestError, FileNotFoundError):
                document = self._read_document(owner, row)
            self._documents[key] = row.stamp, document
        return document

    def _read_document(self, owner: str, row: ObjectRow) -> VersionDocument:
        match = DOCUMENT.fullmatch(row.name)
        assert match is not None
        if row.size > MAX_DOCUMENT:
            raise BadRequestError(f"expected a document of at most {MAX_DOCUMENT} bytes, got {row.size}")
        document = VersionDocument.parse(self._objects.read(owner, row.name), match[1])
        if document.publication.owner != owner:
            raise BadRequestError("expected the owner's document, got another owner's")
        return document

    def fetch(self, owner: str, name: str, version: int) -> Path:
        """See FileModels; a copy that is here already is checked against the store's document.

        Raises:
            NotReadyError: the store is not reached.
            BadRequestError: what is in the store is not what a server wrote.
            StorageError: there is no space for a copy.
        """
        subject = f"model {name[:80]!r}, version {version}"
        with _reached(subject):
            rows = {row.name: row for row in self._objects.rows(owner)}
            row = rows.get(f"{name}@{version}.json")
            if row is None:
                raise no_published_model(name)
            try:
                document = self._read_document(owner, row)
                _check_parts(document, rows)
            except BadRequestError as error:
                raise _refused(subject, error.message) from None
        copy = self._folder(owner) / name / f"{version}-{document.digest[:16]}"
        if copy in self._sound and copy.is_dir():
            return copy
        if not document.is_in(copy):
            self._copy(subject, document, copy)
        self._sound.add(copy)
        return copy

    def _copy(self, subject: str, document: VersionDocument, copy: Path) -> None:
        """Read a version's files into a folder, whole or not at all."""
        owner = document.publication.owner
        draft = self._draft(owner)
        try:
            write_file(draft / RECORD, document.record())
            content = self._content(subject, document)
            for name, size, digest in document.files:
                hashed = hashlib.sha256()
                with (draft / name).open("xb") as file:
                    for piece in content(size):
                        hashed.update(piece)
                        file.write(piece)
                if hashed.hexdigest() != digest:
                    raise _refused(subject, f"{name}: expected bytes of SHA-256 {digest[:12]}…, got others")
            shutil.rmtree(copy, ignore_errors=True)
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.rename(copy)
            sync_folder(copy.parent)
        except OSError as error:
            raise StorageError(f"{subject}: no copy can be written here ({error.strerror})") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _content(self, subject: str, document: VersionDocument) -> Callable[[int], Iterator[memoryview]]:
        """Reads the next so many bytes of a version's files, part by part."""
        parts, rest = iter(document.parts), memoryview(b"")

        def read(size: int) -> Iterator[memoryview]:
            nonlocal rest
            while size:
                if not rest:
                    with _reached(subject):
                        rest = memoryview(self._objects.read(document.publication.owner, next(parts)))
                piece, rest = rest[:size], rest[size:]
                size -= len(piece)
                yield piece

        return read

    def _draft(self, owner: str) -> Path:
        try:
            folder = self._folder(owner)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = folder / f".draft-{secrets.token_hex(8)}"
            draft.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(f"models: no copy can be written here ({error.strerror})") from None
        return draft

    def drop_copies(self, in_use: Collection[str]) -> None:
        """See FileModels."""
        if self._folders.is_empty:
            return
        late = time.time() - self._unused_s
        for path in [*self._folders.path.glob("*/.draft-*"), *self._folders.path.glob("*/*/*-*")]:
            with contextlib.suppress(OSError):
                if str(path) not in in_use and path.stat().st_mtime < late:
                    self._sound.discard(path)
                    shutil.rmtree(path)


@dataclass(slots=True)
class _Part:
    """Bytes that follow each other, of one file or of several."""

    pieces: list[memoryview]

    def write_to(self, file: BinaryIO) -> None:
        for piece in self.pieces:
            file.write(piece)


def _parts(files: Mapping[str, Buffer], part_bytes: int) -> Iterator[_Part]:
    """The files' bytes in parts; all but the last one have `part_bytes`."""
    part, free = _Part([]), part_bytes
    for data in files.values():
        rest = memoryview(data).cast("B")
        while rest:
            piece, rest = rest[:free], rest[free:]
            part.pieces.append(piece)
            free -= len(piece)
            if not free:
                yield part
                part, free = _Part([]), part_bytes
    if part.pieces:
        yield part


def _documents(rows: list[ObjectRow]) -> list[tuple[ObjectRow, re.Match[str]]]:
    """The rows of versions' documents, with their models' names and numbers."""
    return [(row, match) for row in rows if (match := DOCUMENT.fullmatch(row.name))]


def _check_parts(document: VersionDocument, rows: Mapping[str, ObjectRow]) -> None:
    """Raise BadRequestError unless the parts are there, with the bytes of the files."""
    absent = [part for part in document.parts if part not in rows]
    if absent:
        raise BadRequestError(f"expected {len(document.parts)} parts, got {len(absent)} of them missing")
    total = sum(rows[part].size for part in document.parts)
    if total != document.nbytes:
        raise BadRequestError(f"expected parts of {document.nbytes} bytes, got {total}")


def _refused(subject: str, reason: str) -> BadRequestError:
    return BadRequestError(f"{subject}: damaged in the store: {reason}: publish it again")


@contextlib.contextmanager
def _reached(subject: str) -> Iterator[None]:
    """Raise NotReadyError for what the store or the way to it refuses."""
    try:
        yield
    except FileNotFoundError:
        raise NotReadyError(f"{subject}: the store has no such thing, or not any more: try again") from None
    except OSError as error:
        reason = str(error.strerror or error)[:300]
        raise NotReadyError(f"{subject}: the store cannot be reached ({reason}): try again later") from None
