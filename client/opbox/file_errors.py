"""Errors of files that the user names: one sentence with the path, of MXNet's class and of Python's at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from opbox_protocol.errors import DamagedFileError, DeniedFileError, FileError, MissingFileError, MXNetError
from opbox_protocol.near_names import near_names

from .base import value_text

__all__ = ["content_errors", "file_errors", "path_of", "text_of"]


def path_of(value: Any, argument: str) -> Path:
    """A path that the user passed as `argument`.

    Raises:
        TypeError: it is none.

    Example:
        >>> path_of("lenet-0001.params", "load: fname")
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{argument}: expected a path, got {value_text(value)}")
    return Path(value)


@contextmanager
def file_errors(path: str | Path, use: Literal["read", "written"]) -> Iterator[None]:
    """Convert system errors of a file, raised in the block, into errors for the user.

    Args:
        path: the file.
        use: what is done with it.

    Raises:
        FileError: the system refused. It is an MXNetError, as of MXNet, and Python's FileNotFoundError or
            PermissionError where the system's is.

    Example:
        >>> with file_errors(path, "read"):
        ...     text = path.read_text()
    """
    try:
        yield
    except FileError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError(_missing(Path(path), use)) from error
    except PermissionError as error:
        refused = f"{path}: expected a file that may be {use}, got one that may not: see its owner and mode"
        raise DeniedFileError(refused) from error
    except OSError as error:
        got = "a folder" if isinstance(error, IsADirectoryError) else error.strerror or str(error)
        raise FileError(f"{path}: expected a file that can be {use}, got {got}") from error


@contextmanager
def content_errors(path: str | Path) -> Iterator[None]:
    """Put a file's name before the sentence of an MXNetError that its content raises in the block.

    Example:
        >>> with content_errors(path):
        ...     updater.set_states(states)
    """
    try:
        yield
    except MXNetError as error:
        error.reword(f"{path}: {error.message}")
        raise


def text_of(path: Path, expected: str) -> str:
    """The text of a file.

    Args:
        path: the file.
        expected: what it should have in it, for the error.

    Raises:
        FileError: it cannot be read.
        DamagedFileError: its bytes are no text.
    """
    with file_errors(path, "read"):
        raw = path.read_bytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path}: expected {expected}, got bytes that are no text at {error.start}") from None


def _missing(path: Path, use: str) -> str:
    folder = path.parent
    if use == "written":
        return f"{path}: expected a folder to write to, got none: make {folder} first, as by os.makedirs"
    if not folder.is_dir():
        return f"{path}: expected a file to read, got none: there is no folder {folder}"
    try:
        near = near_names(path.name, os.listdir(folder))
    except OSError:  # a folder whose names this user may not read
        near = []
    meant = f"did you mean {' or '.join(near)}" if near else f"look into {folder.resolve()}"
    return f"{path}: expected a file to read, got none: {meant}"
