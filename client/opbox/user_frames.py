"""Tells the user's lines of a traceback from this package's and those of what it calls."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from .base import cell_name

__all__ = ["is_ours", "is_the_users", "without_our_frames"]

PACKAGES = ("opbox", "opbox_protocol", "opbox_ops", "opbox_service")


def is_ours(file: str) -> bool:
    """Return whether a file is one of opbox's packages'."""
    modules = (sys.modules.get(package) for package in PACKAGES)
    return os.path.abspath(file).startswith(tuple(f"{os.path.dirname(str(m.__file__))}{os.sep}" for m in modules if m))


def is_the_users(file: str) -> bool:
    """Return whether a file is a cell or a script, and not installed."""
    if cell_name(file) is not None:
        return True
    path = os.path.abspath(file)
    return not path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep)) and os.path.exists(path)


def without_our_frames(error: BaseException, tb: TracebackType | None) -> str | None:
    """The text of a traceback without this package's frames, and without causes that have no others.

    Frames of other packages stay where they lie above this package's, and so do the user's own below it (a callback).
    None when nothing would be left out, or no frame would remain.
    """
    report = traceback.TracebackException(type(error), error, tb)
    left_out = _shorten(report)
    if not report.stack or not left_out:
        return None
    lines = "a line" if left_out == 1 else f"{left_out} lines"
    return "".join(report.format()) + f"({lines} of opbox's own left out: OPBOX_DEBUG=1 shows all)\n"


def _shorten(report: traceback.TracebackException) -> int:
    """Take frames that are not the user's affair out of a report and its causes; how many of its own."""
    frames = list(report.stack)
    ours = [is_ours(frame.filename) for frame in frames]
    first = ours.index(True) if True in ours else len(frames)
    shown = [
        frame
        for i, (frame, own) in enumerate(zip(frames, ours, strict=True))
        if not own and (i < first or is_the_users(frame.filename))
    ]
    report.stack = traceback.StackSummary.from_list(shown)
    cause = _cause(report)
    if cause is not None:
        _shorten(cause)
        if not cause.stack:  # what led to it may still be the user's
            report.__cause__, report.__context__, report.__suppress_context__ = None, _cause(cause), False
    return len(frames) - len(shown)


def _cause(report: traceback.TracebackException) -> traceback.TracebackException | None:
    """The error before, as Python would show it."""
    return report.__cause__ or (None if report.__suppress_context__ else report.__context__)
