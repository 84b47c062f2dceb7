"""Folders of a user's own, in the places that the environment names: for tokens, state and compiled kernels.

The place may not be writable (`docker run --user`, cron), and it may be another user's, whose environment root has
kept. Root makes no folder there: that user's own programs could not write to it.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import DeniedFileError, FileError, MissingFileError

__all__ = ["check_own", "home", "make_own"]


def home() -> Path:
    """The user's home folder, which need not be there; MissingFileError where nothing says which it is."""
    try:
        return Path.home()
    except RuntimeError:
        raise MissingFileError("home folder: expected one of this user's, got none (HOME names it)") from None


def check_own(folder: Path, *, named: bool = False) -> None:
    """Raise FileError where a user can neither write to a folder nor make it, or where root would do so in another's.

    Args:
        folder: absolute.
        named: whether it was named for this alone: then root takes another user's, too.
    """
    try:
        above = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
        status = above.stat()
    except OSError as error:
        raise _refused(folder, error) from None
    if not named and getattr(os, "geteuid", lambda: -1)() == 0 and status.st_uid != 0:
        raise DeniedFileError(f"{folder}: expected a place of this user's, got one of user {status.st_uid}'s")
    if not os.access(above, os.W_OK | os.X_OK) or not above.is_dir():
        raise DeniedFileError(f"{folder}: expected a place that can be written to, got {above}, which cannot")


def make_own(folder: Path, *, named: bool = False) -> None:
    """Make a folder that its user alone enters, with those above it; arguments and errors as of `check_own`."""
    check_own(folder, named=named)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from None


def _refused(folder: Path, error: OSError) -> FileError:
    return DeniedFileError(f"{folder}: expected a place that can be written to, got none ({error.strerror})")
