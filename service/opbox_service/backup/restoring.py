"""Puts a backup in place of a state directory's state: all of it or, where anything is wrong, nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sqlite3
import tarfile
from pathlib import Path
from typing import IO

from opbox_protocol.errors import (
    BadRequestError,
    ConflictError,
    DamagedFileError,
    FileError,
    MissingFileError,
    MXNetError,
)

from ..accounting.usage import check_ledger
from ..api.token_files import read_tokens
from ..state_dir import sync_folder
from ..state_format import StateLock, StateVersion
from ..state_swap import incoming_folder, remove_leftovers, swap_in, undo_swap
from .contents import ABOUT, LEDGER, MAX_DOCUMENT, SUMS, TOKENS, ArchiveLabel, check_name, parse_sums

__all__ = ["restore"]

PIECE = 1 << 20
MAX_SUMS = 1 << 30
"""Maximum bytes of the list of SHA-256: for ten million files."""


def restore(
    source: Path | IO[bytes], folder: Path, *, replace: bool = False, tokens: Path | None = None
) -> ArchiveLabel:
    """Put a backup's state into a state directory.

    Args:
        source: the archive: its path, or a file to read it from.
        folder: the state directory; it is made where it is not there.
        replace: whether to do it where the directory has state, which is then gone.
        tokens: where to write the file of tokens that the backup has, as a new file.

    Returns:
        What the archive says of itself.

    Raises:
        ConflictError: a server uses the directory, or it has state and `replace` is not set.
        DamagedFileError: the archive is broken, newer than this version, or none.
        FileError: the system refuses.

    Example:
        >>> restore(Path("monday.tar"), Path("/var/lib/opbox")).time
        '2030-01-31T00:00:00Z'
    """
    name = str(source) if isinstance(source, Path) else "standard input"
    try:
        with contextlib.ExitStack() as files:
            file = files.enter_context(source.open("rb")) if isinstance(source, Path) else source
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = StateLock(folder)
            files.callback(lock.close)
            if not lock.alone():
                raise ConflictError(
                    f"state_dir: {folder}: expected a directory that nobody uses, got one in use by a server or a "
                    "backup: stop the server first"
                )
            undo_swap(folder)
            remove_leftovers(folder)
            if _has_state(folder) and not replace:
                raise ConflictError(
                    f"state_dir: {folder}: expected an empty directory, got one with state: name another, or give "
                    "--replace to remove what it has"
                )
            return _restore(file, folder, tokens, f"restore: {name}")
    except FileNotFoundError as error:
        raise MissingFileError(f"restore: {error.filename}: expected a file, got a name that is not there") from None
    except (tarfile.TarError, EOFError) as error:
        raise DamagedFileError(
            f"restore: {name}: expected an archive of opbox backup, got another file ({error})"
        ) from None
    except DamagedFileError as error:
        raise DamagedFileError(f"restore: {name}: {error}") from None
    except MXNetError:
        raise
    except OSError as error:
        raise FileError(f"restore: {error.filename or name}: {error.strerror or error}") from None


def _has_state(folder: Path) -> bool:
    """Return whether a directory has more than a version file."""
    return any(not name.startswith(".") and name != "version.json" for name in os.listdir(folder))


def _restore(file: IO[bytes], folder: Path, tokens: Path | None, place: str) -> ArchiveLabel:
    incoming = incoming_folder(folder)
    written = False
    try:
        about = _unpack(file, incoming, place)
        secret = incoming / TOKENS
        if tokens is not None and not secret.exists():
            raise DamagedFileError("expected one with a file of tokens, got one without: leave --tokens-file out")
        _check(incoming, tokens is not None)
        if about.format:
            StateVersion(about.format, about.opbox).write(incoming)
        if os.geteuid() == 0:
            _give_to_owner(incoming, folder.stat())
        if tokens is not None:
            _write_new(tokens, secret.read_bytes())
            written = True
        shutil.rmtree(secret.parent, ignore_errors=True)
        swap_in(folder, incoming)
    except BaseException:
        if written and tokens is not None:
            tokens.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return about


def _check(incoming: Path, tokens: bool) -> None:
    """Raise DamagedFileError where a server could not start on the state, or with the file of tokens that is asked for.

    What owners have put into checkpoints, datasets and models is checked when it is read.
    """
    ledger = incoming / LEDGER
    try:
        if ledger.exists():
            check_ledger(ledger)
        if tokens:
            read_tokens(incoming / TOKENS)
    except sqlite3.Error as error:
        raise DamagedFileError(
            f"{LEDGER}: expected a usage ledger that a server can open, got none ({error}): take another backup"
        ) from None
    except BadRequestError as error:
        problem = error.message.replace(f"{incoming}/", "")
        raise DamagedFileError(f"{problem}: take another backup, or leave --tokens-file out") from None


def _unpack(file: IO[bytes], incoming: Path, place: str) -> ArchiveLabel:
    """Write an archive's files into a folder, and check each; return what it says of itself."""
    sums: dict[str, str] = {}
    about: ArchiveLabel | None = None
    listed: dict[str, str] | None = None
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            if not member.isreg():
                raise DamagedFileError(f"expected regular files alone, got {member.name[:120]!r}, which is none")
            if listed is not None or member.name in sums:
                raise DamagedFileError(f"expected each file once and {SUMS} last, got {member.name[:120]!r} after it")
            if about is None:
                if member.name != ABOUT:
                    raise DamagedFileError(f"expected {ABOUT} first, got {member.name[:120]!r}")
                text = _read(archive, member, MAX_DOCUMENT)
                about = ArchiveLabel.parse(text)
                StateVersion(about.format, about.opbox).check(place)
                sums[ABOUT] = hashlib.sha256(text).hexdigest()
            elif member.name == SUMS:
                listed = parse_sums(_read(archive, member, MAX_SUMS))
            else:
                check_name(member.name)
                sums[member.name] = _write(archive, member, incoming / member.name)
    if about is None or listed is None:
        raise DamagedFileError(f"expected {SUMS} at the end, got none: it was cut off")
    for name in listed.keys() | sums.keys():
        if listed.get(name) != sums.get(name):
            both = name in listed and name in sums
            problem = "bytes of another SHA-256" if both else "one that is missing or unlisted"
            raise DamagedFileError(f"{name[:120]}: expected the file that {SUMS} lists, got {problem}")
    for path in [incoming, *(path for path in incoming.rglob("*") if path.is_dir())]:
        sync_folder(path)
    return about


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(member)
    assert file is not None  # it is a regular file
    return file


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    if member.size > most:
        raise DamagedFileError(f"{member.name}: expected at most {most} bytes, got {member.size}")
    text = _content(archive, member).read()
    if len(text) != member.size:
        raise DamagedFileError(f"{member.name}: expected {member.size} bytes, got {len(text)}: it was cut off")
    return text


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    """Write a file with the time that it had, which datasets expire by; return its SHA-256."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    content = _content(archive, member)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        while data := content.read(PIECE):
            digest.update(data)
            size += len(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if size != member.size:
        raise DamagedFileError(f"{member.name}: expected {member.size} bytes, got {size}: it was cut off")
    with contextlib.suppress(OSError, ValueError, OverflowError):
        os.utime(path, (member.mtime, member.mtime))
    return digest.hexdigest()


def _write_new(path: Path, text: bytes) -> None:
    """Write a file that is not there yet, whole or not at all, for its user alone."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(text)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise FileError(f"restore: {path}: expected a new file, got one that is there: name another") from None
    finally:
        draft.unlink(missing_ok=True)


def _give_to_owner(folder: Path, status: os.stat_result) -> None:
    """Give a folder and all in it to a user: root restores for the user that the server runs as."""
    os.chown(folder, status.st_uid, status.st_gid)
    for path in folder.rglob("*"):
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)
