"""Sequence diagrams as drawings: Mermaid's text form in, SVG out, without a browser or a script in the page.

    sequenceDiagram
      participant C as Client
      participant S as Server
      C->>S: POST /v1/sessions
      Note over S: a worker is picked
      S-->>C: 201, its id

Colours are the page's own, so that a drawing follows its light and dark mode.
"""

from __future__ import annotations

import html
import re
import textwrap
import zlib
from dataclasses import dataclass
from typing import Any

__all__ = ["fence", "svg"]

STEP, HEAD, MARGIN, LINE = 34, 34, 12, 15
CHARACTER = 6.6
"""Width of a letter of the drawing, in its units."""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
)
"""The head of an arrow."""
_PARTICIPANT = re.compile(r"(?:participant|actor)\s+(\w+)(?:\s+as\s+(.+))?$")
_MESSAGE = re.compile(r"(\w+)\s*(--?>>)\s*(\w+)\s*:\s*(.+)$")
_NOTE = re.compile(r"Note over (\w+)(?:,\s*(\w+))?\s*:\s*(.+)$")


@dataclass(frozen=True, slots=True)
class Row:
    """A message (`arrow` is ->> or -->>) or a note (`arrow` is "") from one participant to another."""

    source: str
    target: str
    arrow: str
    text: str


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **kwargs: Any) -> str:
    """A fenced block of Markdown, as pymdownx.superfences asks for it."""
    return svg(source)


def svg(source: str) -> str:
    """The drawing.

    Raises:
        ValueError: a line that is no participant, message or note.
    """
    names, rows = _read(source)
    width = _gap(names, rows)
    at = {key: MARGIN + width * (i + 0.5) for i, key in enumerate(names)}
    y, parts = HEAD + MARGIN + 8, []
    for row in rows:
        shape, height = _note(row, at, width, y) if not row.arrow else _message(row, at, width, y)
        parts.append(shape)
        y += height
    total = 2 * MARGIN + width * len(names)
    heads = [_head(name, at[key], width) for key, name in names.items()]
    lines = [f'<line class="life" x1="{x:.0f}" y1="{HEAD + 4}" x2="{x:.0f}" y2="{y}"/>' for x in at.values()]
    label = html.escape(f"Sequence of messages between {', '.join(names.values())}")
    size = f'viewBox="0 0 {total:.0f} {y + 6}" width="{total:.0f}"'
    body = "".join([TIP, *lines, *heads, *parts])
    tip = f"tip-{zlib.crc32(source.encode()):08x}"  # a page may have several drawings, and an id is there once
    body = body.replace('id="tip"', f'id="{tip}"').replace("url(#tip)", f"url(#{tip})")
    return f'<div class="sequence"><svg {size} role="img" aria-label="{label}">{body}</svg></div>'


def _read(source: str) -> tuple[dict[str, str], list[Row]]:
    names: dict[str, str] = {}
    rows: list[Row] = []
    for line in map(str.strip, source.splitlines()):
        if not line or line == "sequenceDiagram" or line.startswith("%%"):
            continue
        if match := _PARTICIPANT.match(line):
            names[match[1]] = match[2] or match[1]
        elif match := _MESSAGE.match(line):
            rows.append(Row(match[1], match[3], match[2], match[4]))
        elif match := _NOTE.match(line):
            rows.append(Row(match[1], match[2] or match[1], "", match[3]))
        else:
            raise ValueError(f"a diagram: expected a participant, a message or a note, got {line!r}")
    unknown = {key for row in rows for key in (row.source, row.target)} - set(names)
    if unknown:
        raise ValueError(f"a diagram: expected participants {', '.join(names)}, got {', '.join(sorted(unknown))}")
    return names, rows


def _gap(names: dict[str, str], rows: list[Row]) -> float:
    """The distance of two participants: what the longest lines between neighbours need, in two lines at most."""
    order = list(names)
    needed = [len(name) * CHARACTER + 24 for name in names.values()]
    for row in rows:
        steps = max(abs(order.index(row.source) - order.index(row.target)), 1)
        needed.append((len(row.text) * CHARACTER / 2 + 30) / steps)
    return min(max(*needed, 110), 210)


def _head(name: str, x: float, width: float) -> str:
    box = width - 14
    return (
        f'<rect class="head" x="{x - box / 2:.0f}" y="4" width="{box:.0f}" height="{HEAD - 4}" rx="5"/>'
        f'<text class="name" x="{x:.0f}" y="{HEAD / 2 + 6:.0f}">{html.escape(name)}</text>'
    )


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(int(width / CHARACTER), 12))


def _texts(lines: list[str], x: float, y: float) -> str:
    return "".join(
        f'<text x="{x:.0f}" y="{y + i * LINE:.0f}">{html.escape(line)}</text>' for i, line in enumerate(lines)
    )


def _message(row: Row, at: dict[str, float], width: float, y: float) -> tuple[str, float]:
    begin, end = at[row.source], at[row.target]
    dashed = ' stroke-dasharray="5 4"' if row.arrow == "-->>" else ""
    if begin == end:
        lines = _wrapped(row.text, width - 40)
        path = f"M{begin:.0f},{y + 4:.0f} h22 v16 h-20"
        height = max(STEP, len(lines) * LINE + 14)
        texts = "".join(
            f'<text class="own" x="{begin + 28:.0f}" y="{y + 10 + i * LINE:.0f}">{html.escape(line)}</text>'
            for i, line in enumerate(lines)
        )
        return f'<path class="arrow" d="{path}" marker-end="url(#tip)"{dashed}/>{texts}', height
    lines = _wrapped(row.text, abs(end - begin) - 16)
    below = y + len(lines) * LINE
    ends = f'x1="{begin:.0f}" y1="{below:.0f}" x2="{end:.0f}" y2="{below:.0f}"'
    shape = f'<line class="arrow" {ends} marker-end="url(#tip)"{dashed}/>'
    return shape + _texts(lines, (begin + end) / 2, y + LINE - 5), len(lines) * LINE + 19


def _note(row: Row, at: dict[str, float], width: float, y: float) -> tuple[str, float]:
    left, right = sorted((at[row.source], at[row.target]))
    box = right - left + width - 16
    lines = _wrapped(row.text, box - 12)
    height = len(lines) * LINE + 10
    x = (left + right) / 2
    shape = f'<rect class="note" x="{x - box / 2:.0f}" y="{y:.0f}" width="{box:.0f}" height="{height}" rx="3"/>'
    return shape + _texts(lines, x, y + 17), height + 14
