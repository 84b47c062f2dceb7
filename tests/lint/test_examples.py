"""The operators in the examples pass `opbox lint`."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox.lint import lint

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = {path.name: path.read_text("utf-8") for path in sorted(EXAMPLES.glob("*.py"))}
PROGRAMS = [
    pytest.param(name, marks=[pytest.mark.compiler] if "mx.rtc" in text else [])
    for name, text in TEXTS.items()
    if "mx.operator." in text
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name: str) -> None:
    report = lint(EXAMPLES / name)
    assert report.operators
    assert report.ok, report.table()
    assert "warn" not in {v.verdict for each in report.operators for case in each.cases for v in case.checks.values()}
