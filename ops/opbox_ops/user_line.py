"""Finds the line of a user's operator file that raised an error, for the sentence that reports it."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb

__all__ = ["user_line"]

_OURS = {"opbox_ops", "opbox_protocol", "opbox_service", "numpy", "cupy"}


def user_line(error: Exception) -> str:
    """Return " (file.py:12)", the line of a user's operator file that raised an error; "" for code of this package."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_ours(Path(frame.filename))]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _is_ours(path: Path) -> bool:
    return str(path).startswith("<frozen") or not _OURS.isdisjoint(path.parts)
