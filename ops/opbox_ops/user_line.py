"""Where somebody's operator file failed, for the sentence that reports it."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb

__all__ = ["user_line"]

_OURS = {"opbox_ops", "opbox_protocol", "opbox_service", "numpy", "cupy"}


def user_line(error: Exception) -> str:
    """ " (file.py:12)", the line of somebody's operator file in which an error was raised; "" for our own code."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_ours(Path(frame.filename))]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _is_ours(path: Path) -> bool:
    return str(path).startswith("<frozen") or not _OURS.isdisjoint(path.parts)
