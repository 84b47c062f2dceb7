"""FileModels: the files of models that owners have published, in the state directory or a temporary folder.

models/
  0f3c…/                 an owner, by the hash of the name
    lenet/               a model
      3/                 a version: its files, its model.toml, and published.json, which says whose it is
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from opbox_protocol.errors import BadRequestError, ConflictError, NotFoundError, NotReadyError, StorageError

from ..accounting.accounts import Accounts
from ..owner_locks import OwnerLocks
from ..owner_terms import LARGER_QUOTA
from ..settings import Settings
from ..state_dir import StateFolder, sync_folder
from ..state_format import VERSION_FILE
from .model_config import CONFIG_FILE, read_config
from .model_files import ONNX, OPERATORS, PARAMS, SYMBOL, find_files

__all__ = [
    "DRAFT_S",
    "MAX_VERSION",
    "PUBLISHED_NAME",
    "RECORD",
    "Buffer",
    "FileModels",
    "Publication",
    "Stamps",
    "check_config",
    "check_quota",
    "checked_files",
    "checked_names",
    "next_version",
    "no_published_model",
    "public_name",
    "read_record",
    "write_file",
]

PUBLISHED_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""No dot: `OWNER.NAME` has its last one before the name."""
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RECORD = "published.json"
LABELS = "*.txt"
MAX_TEXT = {CONFIG_FILE: 1 << 16, LABELS: 1 << 20}
"""Maximum bytes of a file that the API process reads: 1 MiB are 50,000 classes of 20 letters."""
MAX_MODELS = 100
"""Maximum number of published models of an owner: each is loaded at the server's start."""
MAX_VERSION = 10**9
PIECE = 1 << 20
"""Bytes to write at a time; between two pieces it is checked whether to go on."""
DRAFT_S = 3600.0
"""Age in seconds from which an unfinished upload is a crashed server's."""
Buffer: TypeAlias = "bytes | memoryview"
Stamps: TypeAlias = "dict[int, str]"
"""By version, a text that changes with its files."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What was said when a version was published.

    Attributes:
        owner, name: whose it is, and how its owner calls it.
        callers: the further owners who may call it; None for everyone.
        labels: the file of class names that came with it; None where its model.toml says it, or nothing does.
    """

    owner: str
    name: str
    callers: tuple[str, ...] | None = ()
    labels: str | None = None

    @property
    def full_name(self) -> str:
        """How every owner may call it."""
        return public_name(self.owner, self.name)

    def may_call(self, owner: str) -> bool:
        """Return whether an owner may call it."""
        return self.callers is None or owner == self.owner or owner in self.callers


def public_name(owner: str, name: str) -> str:
    """How every owner may call a published model. A slash in the owner's name is written %2F, as paths have none.

    Example:
        >>> public_name("ann", "lenet"), public_name("oidc:a/b", "lenet")
        ('ann.lenet', 'oidc:a%2Fb.lenet')
    """
    return f"{owner.replace('%', '%25').replace('/', '%2F')}.{name}"


class FileModels:
    """Published models on disk. A version is there whole or not at all. Safe to call from many threads.

    Several servers may share the directory, as at a rolling restart.

    Args:
        settings: the state directory, and how many versions to keep.
        accounts: the quotas.
    """

    def __init__(self, settings: Settings, accounts: Accounts) -> None:
        self._accounts = accounts
        self._root = settings.store_dir
        self._folders = StateFolder(settings.store_dir, "models")
        self._keep = settings.max_model_versions
        self._locks = OwnerLocks()

    # -- writing --------------------------------------------------------------------------------------------------

    def save(
        self,
        publication: Publication,
        files: Mapping[str, Buffer],
        version: int | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> int:
        """Write a version, and return its number; it is on disk when this returns.

        Args:
            publication: whose it is, its name, and who may call it.
            files: the bytes by the file's name: a symbol with its parameters or an ONNX file, and if wanted
                model.toml and a text file of labels.
            version: its number, larger than those that are there; by default the next.
            go_on: called often; raises an exception to stop.

        Raises:
            BadRequestError: the names of the files are not those of a model, or model.toml has a mistake.
            ConflictError: the version is there, or a later one.
            StorageError: the owner has too many models, or too many bytes of them; or the disk is full.
        """
        publication = checked_files(publication, files)
        owner, name = publication.owner, publication.name
        folder = self._folder(owner)
        with self._locks.of(owner):
            try:
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
                self._remove_drafts(folder)
                self._check_quota(publication, sum(len(data) for data in files.values()))
                draft = folder / f".draft-{secrets.token_hex(8)}"
                draft.mkdir(mode=0o700)
                try:
                    record = json.dumps(asdict(publication)).encode()
                    for file_name, data in {**files, RECORD: record}.items():
                        write_file(draft / file_name, data, go_on)
                    check_config(draft)
                    sync_folder(draft)
                    number = self._place(draft, folder / name, version)
                except BaseException:
                    shutil.rmtree(draft, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        (folder / name).rmdir()  # where no version is in it
                    raise
            except OSError as error:
                raise StorageError(
                    f"model {name!r}: cannot be written ({error.strerror}): the versions that are there stay"
                ) from None
        return number

    def _place(self, draft: Path, folder: Path, version: int | None) -> int:
        """Give a draft its number; another server may take the same one meanwhile."""
        while True:
            number = next_version(folder.name, _numbered(folder), version)
            try:
                draft.rename(folder / str(number))
            except OSError:
                if number not in _numbered(folder):
                    raise
            else:
                sync_folder(folder)
                return number

    def _check_quota(self, publication: Publication, size: int) -> None:
        sizes = {
            path.name: {number: _size(version) for number, version in _numbered(path).items()}
            for path in _entries(self._folder(publication.owner))
        }
        check_quota(publication, size, sizes, self._accounts.of(publication.owner).model_bytes, self._keep)

    def prune(self, owner: str, name: str) -> list[int]:
        """Remove all but the newest versions of a model; return the numbers of those that stay."""
        with self._locks.of(owner):
            numbers = sorted(self.versions(owner, name))
            for number in numbers[: -self._keep]:
                self.remove(owner, name, number)
        return numbers[-self._keep :]

    def remove(self, owner: str, name: str, version: int | None = None) -> None:
        """Remove a version of a model, or all of them. What is not there is removed already.

        Raises:
            StorageError: the system refuses.
        """
        if not re.fullmatch(PUBLISHED_NAME, name):
            return
        folder = self._folder(owner)
        gone = folder / f".removed-{secrets.token_hex(8)}"
        with self._locks.of(owner):
            try:
                (folder / name if version is None else folder / name / str(version)).rename(gone)
                sync_folder(folder)
                shutil.rmtree(gone)
                if version is not None and not _numbered(folder / name):
                    shutil.rmtree(folder / name, ignore_errors=True)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StorageError(f"model {name!r}: cannot be removed ({error.strerror})") from None

    @staticmethod
    def _remove_drafts(folder: Path) -> None:
        """Remove what a server that has crashed left of an upload."""
        for path in _entries(folder, hidden=True):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > DRAFT_S:
                    shutil.rmtree(path)

    # -- reading --------------------------------------------------------------------------------------------------

    def all(self) -> list[tuple[str, str]]:
        """Owner and name of every published model, by name."""
        models: list[tuple[str, str]] = []
        if self._folders.is_empty:
            return []
        for folder in _entries(self._folders.path):
            for model in _entries(folder):
                for number in sorted(_numbered(model), reverse=True):
                    with contextlib.suppress(BadRequestError):
                        publication = self.publication(model / str(number))
                        models.append((publication.owner, publication.name))
                        break
        return sorted(models)

    def versions(self, owner: str, name: str) -> dict[int, Path]:
        """The folders of a model's versions by number; empty where it has none."""
        return _numbered(self._folder(owner) / name) if re.fullmatch(PUBLISHED_NAME, name) else {}

    @staticmethod
    def publication(folder: Path) -> Publication:
        """What was said when a version was published; BadRequestError when its record is damaged."""
        try:
            return read_record(json.loads((folder / RECORD).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRequestError(
                f"{folder.parent.name}, version {folder.name}: {RECORD}: damaged ({error!r})"
            ) from None

    def fetch(self, owner: str, name: str, version: int) -> Path:
        """Have a version's files on this machine's disk; the folder of them.

        Raises:
            NotFoundError: there is no such version.
            MXNetError: they cannot be had.
        """
        folder = self.versions(owner, name).get(version)
        if folder is None:
            raise no_published_model(name)
        return folder

    def stamps(self, owner: str, name: str) -> Stamps:
        """A text for each version of a model that is there: another one whenever it is another version's files."""
        stamps = {}
        for number, path in self.versions(owner, name).items():
            with contextlib.suppress(FileNotFoundError):  # it has just been removed
                stamps[number] = str(path.stat().st_mtime_ns)
        return stamps

    def all_stamps(self) -> dict[tuple[str, str], Stamps]:
        """The stamps of every published model, by owner and name.

        Raises:
            NotReadyError: they cannot be looked at now.
        """
        if self._root is not None and not (self._root / VERSION_FILE).exists():
            raise NotReadyError(f"models: expected {VERSION_FILE} in {self._root}, got none: is its disk mounted?")
        return {(owner, name): self.stamps(owner, name) for owner, name in self.all()}

    def drop_copies(self, in_use: Collection[str]) -> None:
        """Remove copies of files that are elsewhere, but for those in the folders that are in use."""

    def memory_bytes(self, owner: str) -> int:
        """Maximum device memory of an owner's models and sessions; 0: as the device has."""
        return self._accounts.of(owner).memory_bytes

    def used(self, owner: str) -> int:
        """Bytes of an owner's published models."""
        if self._folders.is_empty:
            return 0
        return sum(_size(version) for model in _entries(self._folder(owner)) for version in _numbered(model).values())

    def _folder(self, owner: str) -> Path:
        # An owner's name may be any text.
        return self._folders.path / hashlib.sha256(owner.encode()).hexdigest()[:32]


def next_version(name: str, there: Collection[int], version: int | None) -> int:
    """The number of a model's new version: that which is asked for, or the next.

    Raises:
        ConflictError: it is not more than those that are there.
    """
    newest = max(there, default=0)
    if version is not None and version <= newest:
        raise ConflictError(
            f"model {name!r}: version: expected more than {newest}, which is there, got {version}: leave it out to "
            "have the next number"
        )
    number = version or newest + 1
    if number > MAX_VERSION:
        raise ConflictError(f"model {name!r}: expected versions up to {MAX_VERSION}, got one more")
    return number


def check_quota(
    publication: Publication, size: int, sizes: Mapping[str, Mapping[int, int]], most: int, keep: int, more: int = 0
) -> None:
    """Raise StorageError for what is too much; versions that make way for this one do not count.

    Args:
        publication: what is to be stored.
        size: bytes of its files.
        sizes: bytes of the owner's models that are there, by name and version.
        most: bytes that the owner may have.
        keep: how many versions of a model stay.
        more: bytes of the owner's beside them.
    """
    name = publication.name
    if not most:
        raise StorageError(f"model {name!r}: expected none, as your quota is 0 bytes, got one: {LARGER_QUOTA}")
    models = [model for model, versions in sizes.items() if versions]
    if name not in models and len(models) >= MAX_MODELS:
        raise StorageError(
            f"model {name!r}: expected at most {MAX_MODELS} of an owner, got one more: remove one "
            "(opbox models remove NAME)"
        )
    own = sizes.get(name, {})
    leaving = sum(own[number] for number in sorted(own)[: -(keep - 1) or None])
    used = sum(sum(versions.values()) for versions in sizes.values()) - leaving + more
    if used + size > most:
        raise StorageError(
            f"model {name!r}: expected at most {most} bytes of an owner's models, got {used} and {size} more: "
            f"remove one (opbox models remove NAME), or {LARGER_QUOTA}"
        )


def read_record(fields: Any) -> Publication:
    """A publication from its JSON; KeyError or TypeError where that is of another form."""
    callers = fields["callers"]
    publication = Publication(
        fields["owner"], fields["name"], None if callers is None else tuple(callers), fields["labels"]
    )
    texts = (publication.owner, publication.name, publication.labels or "", *(publication.callers or ()))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("expected texts")
    return publication


def no_published_model(name: str) -> NotFoundError:
    """The error for a name that no published model of the owner's has."""
    return NotFoundError(
        f"model {name[:80]!r}: expected one that you published (opbox models lists them), got another name"
    )


def checked_files(publication: Publication, files: Mapping[str, Buffer]) -> Publication:
    """The publication, with the file of labels that came; BadRequestError where names or sizes are wrong."""
    return checked_names(publication, {name: len(data) for name, data in files.items()})


def checked_names(publication: Publication, sizes: Mapping[str, int]) -> Publication:
    """As `checked_files`, by the files' bytes."""
    if not re.fullmatch(PUBLISHED_NAME, publication.name):
        raise BadRequestError(
            f"model {publication.name[:80]!r}: expected a name of up to 64 letters, digits, dashes and underlines, a "
            "letter or digit first: others call it OWNER.NAME, so that it has no dot"
        )
    kinds: dict[str, list[str]] = {pattern: [] for pattern in (SYMBOL, PARAMS, ONNX, OPERATORS, LABELS, CONFIG_FILE)}
    for name, size in sizes.items():
        kind = next((kind for kind in kinds if name.endswith(kind.removeprefix("*"))), None)
        if kind is None or not re.fullmatch(FILE_NAME, name) or (kind == CONFIG_FILE != name):
            raise BadRequestError(
                "files: expected NAME-symbol.json, NAME.params, NAME-ops.json, NAME.onnx, model.toml or a .txt file of "
                f"labels, got {name[:140]!r}"
            )
        kinds[kind].append(name)
        if size > MAX_TEXT.get(kind, size):
            raise BadRequestError(f"{name}: expected at most {MAX_TEXT[kind]} bytes, got {size}")
    numbers = [len(kinds[kind]) for kind in (SYMBOL, PARAMS, ONNX)]
    if numbers not in ([1, 1, 0], [0, 0, 1]) or max(len(kinds[LABELS]), len(kinds[OPERATORS])) > 1:
        raise BadRequestError(
            "files: expected one NAME-symbol.json with one .params, or one .onnx file, and at most one .txt file, got "
            + (", ".join(name[:40] for name in list(sizes)[:5]) or "none")
        )
    labels = kinds[LABELS][0] if kinds[LABELS] else None
    return Publication(publication.owner, publication.name, publication.callers, labels)


def check_config(folder: Path) -> None:
    """Raise BadRequestError where a version's model.toml has a mistake, or says who may call it."""
    find_files(folder)
    if read_config(folder / CONFIG_FILE).owners is not None:
        raise BadRequestError(
            f"{CONFIG_FILE}: owners: expected none in a model that is published, got some: say who may call it when "
            "you publish it (--to)"
        )


def _entries(folder: Path, *, hidden: bool = False) -> list[Path]:
    """The folders in a folder, unfinished ones or the others; none where it is not there."""
    try:
        return [path for path in folder.iterdir() if path.name.startswith(".") == hidden and path.is_dir()]
    except OSError:
        return []


def _numbered(folder: Path) -> dict[int, Path]:
    """The folders of versions in a model's folder."""
    return {int(path.name): path for path in _entries(folder) if re.fullmatch(r"[1-9]\d{0,9}", path.name)}


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                total += entry.stat().st_size
    return total


def write_file(path: Path, data: Buffer, go_on: Callable[[], None] = lambda: None) -> None:
    """Write a new file and flush it to disk; `go_on` is called before each piece."""
    with path.open("xb") as file:
        for piece in _pieces(data, PIECE):
            go_on()
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _pieces(data: Buffer, size: int) -> Iterator[memoryview]:
    """The bytes in pieces of at most `size`."""
    view = memoryview(data).cast("B")
    for begin in range(0, len(view), size):
        yield view[begin : begin + size]
