"""Short HTML for notebooks: a table with a caption, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["preformatted", "shape_text", "table"]

LONGEST = 60
"""Maximum number of rows of a table; further rows are only counted."""


def shape_text(shape: Iterable[int] | None) -> str:
    """A shape as 32×10; "?" for one that is not known, "scalar" for none."""
    return "?" if shape is None else "×".join(str(d) for d in shape) or "scalar"


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table.

    Args:
        caption: what it shows, in a line.
        columns: their names.
        rows: a cell for each column; of many rows the first ones are shown.
    """
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows[:LONGEST]
    )
    if len(rows) > LONGEST:
        body += f"<tr><td colspan='{len(columns)}'>and {len(rows) - LONGEST} more</td></tr>"
    return (
        f"<table><caption style='text-align:left'>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def preformatted(text: str, caption: str) -> str:
    """Text in lines, with what it is below."""
    return f"<pre>{escape(text)}</pre><small>{escape(caption)}</small>"
