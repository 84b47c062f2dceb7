"""Writes a backup of a state directory while servers use it.

Each file is as it was at some moment of the backup, and what belongs together is of one moment: a version of a model is
there whole or not at all, a named dataset has all its blocks, the ledger is a snapshot by SQLite, the audit log ends
with a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import secrets
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from opbox_protocol.errors import FileError, MissingFileError, NotReadyError

from ..state_dir import sync_folder
from ..state_format import StateLock, StateVersion, own_version
from .contents import ABOUT, ARCHIVE, LEDGER, NAMES, SUMS, TOKENS, ArchiveLabel, sums_text

__all__ = ["BackupReport", "back_up"]

TRIES = 3
"""How often files are looked for again that others have replaced meanwhile."""
PIECE = 1 << 20


class BackupReport:
    """What a backup has: the number of files and their bytes by kind ("checkpoints", …), and what it has not.

    Attributes:
        files, nbytes: by kind.
        absent: sentences on what went away while the backup was made.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.nbytes: dict[str, int] = {}
        self.absent: list[str] = []

    def count(self, name: str, nbytes: int) -> None:
        """Count a file."""
        kind = name.partition("/")[0].partition(".")[0]
        self.files[kind] = self.files.get(kind, 0) + 1
        self.nbytes[kind] = self.nbytes.get(kind, 0) + nbytes

    def to_json(self) -> dict[str, Any]:
        """As `opbox backup --json` prints it."""
        return {"files": self.files, "bytes": self.nbytes, "absent": self.absent}


def back_up(folder: Path, target: Path | IO[bytes], tokens: Path | None = None) -> BackupReport:
    """Write a backup.

    Args:
        folder: the state directory.
        target: a path, where the archive is whole or not there; or a file to write to.
        tokens: a file of tokens to take along.

    Raises:
        MissingFileError: there is no such directory or file.
        FileError: the target is there already; or the system refuses to read or to write.
        NotReadyError: the state is newer than this version, or is being restored.

    Example:
        >>> back_up(Path("/var/lib/opbox"), Path("monday.tar")).files
        {'checkpoints': 12, 'usage': 1, 'audit': 2}
    """
    if not folder.is_dir():
        raise MissingFileError(f"state_dir: {folder}: expected a state directory, got a name that is not there")
    try:
        lock = StateLock(folder)
        try:
            if not lock.share():
                raise NotReadyError(f"state_dir: {folder}: it is being upgraded or restored: try again when that ends")
            version = StateVersion.of(folder)
            version.check(f"state_dir: {folder}")
            if isinstance(target, Path):
                return _write_path(folder, target, version, tokens)
            return _Archive(target, folder, version).write(tokens)
        finally:
            lock.close()
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"backup: {error.filename or folder}: {error.strerror or error}") from None


def _write_path(folder: Path, target: Path, version: StateVersion, tokens: Path | None) -> BackupReport:
    if target.exists():
        raise FileError(f"backup: {target}: expected a new file, got one that is there: name another, or remove it")
    if target.resolve().is_relative_to(folder.resolve()):
        raise FileError(f"backup: {target}: expected a place outside the state directory {folder}, got one inside")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            report = _Archive(file, folder, version).write(tokens)
            file.flush()
            os.fsync(fd)
        os.link(draft, target)  # not in place of a file that came meanwhile
        draft.unlink()
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)
    return report


class _Archive:
    """An archive that is being written."""

    def __init__(self, file: IO[bytes], folder: Path, version: StateVersion) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115  # `write` closes it
        self._folder = folder
        self._version = version
        self._sums: dict[str, str] = {}
        self._report = BackupReport()

    def write(self, tokens: Path | None) -> BackupReport:
        with self._tar:
            time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            about = ArchiveLabel(ARCHIVE, self._version.format, own_version().opbox, time)
            self._add_bytes(ABOUT, json.dumps(about.to_json()).encode() + b"\n")
            self._add_checkpoints()
            self._add_models()
            self._add_datasets()
            self._add_ledger()
            self._add_audit()
            if tokens is not None:
                with open(tokens, "rb") as file:
                    self._add(TOKENS, file)
            self._add_bytes(SUMS, sums_text(self._sums))
        return self._report

    # -- parts ----------------------------------------------------------------------------------------------------

    def _add_checkpoints(self) -> None:
        root = self._folder / "checkpoints"
        for owner in _names(root):
            for stem in sorted({_stem(name) for name in _names(root / owner)}):
                # One that is saved anew meanwhile stays readable. A session that goes on from it renames it.
                for _ in range(TRIES):
                    files = [name for name in _names(root / owner) if _stem(name) == stem]
                    if not files:
                        break  # it was deleted
                    place = f"checkpoints/{owner}/{max(files, key=_generation)}"
                    with contextlib.suppress(FileNotFoundError), _opened(self._folder, place) as file:
                        self._add(place, file)
                        break
                else:
                    self._report.absent.append(f"checkpoint {stem!r}: sessions took it from each other")

    def _add_models(self) -> None:
        root = self._folder / "models"
        for owner in _names(root):
            for model in _names(root / owner):
                for number in _names(root / owner / model):
                    place = f"models/{owner}/{model}/{number}"
                    with contextlib.ExitStack() as files:
                        try:
                            version = {
                                name: files.enter_context(_opened(self._folder, f"{place}/{name}"))
                                for name in os.listdir(self._folder / place)
                            }
                        except (FileNotFoundError, NotADirectoryError):
                            continue  # it was removed, as a whole
                        for name, file in version.items():
                            self._add(f"{place}/{name}", file)

    def _add_datasets(self) -> None:
        for owner in _names(self._folder / "datasets"):
            place = f"datasets/{owner}"
            present: set[str] = set()
            waiting = self._named(place)
            for block in _names(self._folder / place / "blocks"):
                self._add_block(place, block, present)
            for _ in range(TRIES):
                for name, (text, blocks) in list(waiting.items()):
                    if all(self._add_block(place, block, present) for block in blocks):
                        self._add_bytes(f"{place}/named/{name}", text)
                        del waiting[name]
                if not waiting:
                    break
                # Somebody has replaced or deleted them, and their blocks went.
                latest = self._named(place)
                waiting = {name: latest[name] for name in waiting if name in latest}
            for name in waiting:
                self._report.absent.append(f"dataset {name.removesuffix('.json')!r}: it was replaced again and again")

    def _named(self, place: str) -> dict[str, tuple[bytes, list[str]]]:
        """The named datasets of an owner: the file's text and the blocks; damaged ones have none."""
        named = {}
        for name in _names(self._folder / place / "named"):
            with contextlib.suppress(FileNotFoundError), _opened(self._folder, f"{place}/named/{name}") as file:
                text = file.read()
                try:
                    blocks = [block for array in json.loads(text)["arrays"].values() for block in array["blocks"]]
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    blocks = []
                named[name] = (text, [block for block in blocks if isinstance(block, str)])
        return named

    def _add_block(self, place: str, block: str, present: set[str]) -> bool:
        """Add a block unless it is there; False where it is gone."""
        if block in present:
            return True
        name = f"{place}/blocks/{block}"
        if not NAMES.fullmatch(name):
            return False
        try:
            with _opened(self._folder, name) as file:
                self._add(name, file)
        except FileNotFoundError:
            return False
        present.add(block)
        return True

    def _add_ledger(self) -> None:
        path = self._folder / LEDGER
        if not path.exists():
            return
        with tempfile.TemporaryDirectory(prefix="opbox-backup-") as scratch:
            copy = Path(scratch) / LEDGER
            try:
                source, target = sqlite3.connect(path), sqlite3.connect(copy)
                with contextlib.closing(source), contextlib.closing(target):
                    source.backup(target)
            except sqlite3.Error as error:
                raise FileError(
                    f"backup: {path}: expected a usage ledger that can be read, got none ({error}): run it as the "
                    "server's user"
                ) from None
            with copy.open("rb") as file:
                self._add(LEDGER, file)

    def _add_audit(self) -> None:
        with contextlib.ExitStack() as files:
            with self._audit_at_rest():
                logs = {
                    name: files.enter_context(_opened(self._folder, name))
                    for name in _names(self._folder)
                    if name.startswith("audit.log") and NAMES.fullmatch(name)
                }
                sizes = {name: os.fstat(file.fileno()).st_size for name, file in logs.items()}
            for name, file in logs.items():
                self._add(name, file, sizes[name])

    @contextlib.contextmanager
    def _audit_at_rest(self) -> Iterator[None]:
        """Meanwhile nobody adds a line or rotates the files."""
        try:
            lock = os.open(self._folder / ".audit.log.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    # -- files ----------------------------------------------------------------------------------------------------

    def _add_bytes(self, name: str, text: bytes) -> None:
        self._add(name, io.BytesIO(text), len(text))

    def _add(self, name: str, file: IO[bytes], size: int | None = None) -> None:
        """Add so many bytes of a file, by default all, and note their SHA-256."""
        if name not in (ABOUT, SUMS) and not NAMES.fullmatch(name):
            self._report.absent.append(f"{name}: it is none of a server's files")
            return
        info = tarfile.TarInfo(name)
        info.mode = 0o600
        status = None if isinstance(file, io.BytesIO) else os.fstat(file.fileno())
        info.mtime = int(datetime.now(UTC).timestamp()) if status is None else status.st_mtime
        info.size = size if size is not None else status.st_size if status is not None else 0
        reader = _Hashing(file, info.size)
        self._tar.addfile(info, reader)
        self._sums[name] = reader.digest()
        if name not in (ABOUT, SUMS):
            self._report.count(name, info.size)


class _Hashing:
    """Reads a file for an archive, no further than to a size, and takes the SHA-256 of what it reads."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self._sha256 = hashlib.sha256()
        self.digest: Callable[[], str] = self._sha256.hexdigest

    def read(self, size: int = PIECE) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        self._sha256.update(data)
        return data


def _stem(name: str) -> str:
    """The name of the checkpoint that a file has, whatever its generation."""
    return name.removesuffix(".checkpoint").partition("@")[0]


def _generation(name: str) -> int:
    """The generation of the checkpoint in a file: of "run@3.checkpoint" 3, of "run.checkpoint" 0."""
    number = name.removesuffix(".checkpoint").partition("@")[2]
    return int(number) if number.isdecimal() else 0


def _names(folder: Path) -> list[str]:
    """The names in a folder in order, unfinished ones left out; none where it is not there."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """A file of the state directory, for reading; no link."""
    fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(fd, "rb") as file:
        yield file
