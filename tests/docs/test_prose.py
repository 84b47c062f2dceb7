"""Lines of prose in the documents end at 120 columns; tables, headings, code and links' addresses may be longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 120
GENERATED = {"operators.md", "compatibility.md"}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("*/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED),
]
_ADDRESS = re.compile(r"\]\([^)]*\)(?:\{[^}]*\})?")


def long_lines(text: str) -> list[int]:
    """The numbers of a page's lines of prose that have more than 120 columns."""
    numbers = []
    fence = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif not fence and not line.startswith(("|", "#")) and len(_ADDRESS.sub("]", line)) > COLUMNS:
            numbers.append(number)
    return numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_ends_at_120_columns(page: Path) -> None:
    numbers = long_lines(page.read_text(encoding="utf-8"))
    assert not numbers, f"{page.relative_to(ROOT)}: break these lines at {COLUMNS} columns: {numbers}"


def test_what_counts_as_prose() -> None:
    long = "word " * 30
    assert long_lines(f"short\n{long}\n- {long}\n[{long}](a.md)") == [2, 3, 4]
    assert long_lines(f"| {long} |\n### {long}\n```\n{long}\n```") == []
    assert long_lines(f"[a word](https://{'a' * 120}.example) and another") == []
