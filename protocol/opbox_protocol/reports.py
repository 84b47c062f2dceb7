"""Limits of the command `report`, and of a session's program and host names."""

from __future__ import annotations

__all__ = ["MAX_HOST", "MAX_NAME", "MAX_NAMES", "MAX_SCRIPT"]

MAX_NAMES, MAX_NAME = 16, 64
"""Maximum number of values of a report, and of characters of a value's name."""
MAX_SCRIPT, MAX_HOST = 128, 255
"""Maximum number of characters of a program's name and of its machine's name."""
