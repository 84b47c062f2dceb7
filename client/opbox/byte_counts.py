"""Numbers of bytes as text."""

from __future__ import annotations

__all__ = ["bytes_text"]


def bytes_text(count: float) -> str:
    """A number of bytes in a unit that leaves few digits: 3.2 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
