"""Limits of what programs tell their server of themselves: the command `report`, and who opened a session."""

from __future__ import annotations

__all__ = ["MAX_HOST", "MAX_NAME", "MAX_NAMES", "MAX_SCRIPT"]

MAX_NAMES, MAX_NAME = 16, 64
"""Values of a report, and characters of a value's name."""
MAX_SCRIPT, MAX_HOST = 128, 255
"""Characters of a program's name, and of its machine's."""
