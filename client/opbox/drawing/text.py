"""Estimates the width of a text in Helvetica and fonts like it, without a browser."""

from __future__ import annotations

__all__ = ["BOLD", "text_width"]

# Widths in thousandths of the size, from Adobe's metrics of the 14 standard fonts, for the characters from " " to "~".
_ASCII = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *(556,) * 10,
    *(278, 278, 584, 584, 584, 556, 1015),
    *(667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833),
    *(722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611),
    *(278, 278, 278, 469, 556, 333),
    *(556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833),
    *(556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500),
    *(334, 260, 334, 584),
)
BOLD = 1.08
"""Factor by which bold letters are wider."""
_MARGIN = 1.1
"""Factor by which fonts that replace Helvetica are wider."""


def text_width(text: str, size: float) -> float:
    """Pixels that a text of this size takes at most, about."""
    widths = (_ASCII[ord(c) - 32] if 32 <= ord(c) < 127 else 700 for c in text)
    return sum(widths) * size * _MARGIN / 1000
