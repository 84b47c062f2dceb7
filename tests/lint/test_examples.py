"""The operators in the examples pass `opbox lint`."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox.lint import lint
from opbox_ops import registry

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
    assert "warn" not in {
        v.verdict for operator in report.operators for case in operator.cases for v in case.checks.values()
    }


def test_the_operator_of_the_guide(tmp_path: Path) -> None:
    page = EXAMPLES.parent / "docs" / "writing-operators.md"
    path = tmp_path / "guide.py"
    text = page.read_text("utf-8").split("```python\n")[1].split("```")[0]
    path.write_text(text + '\nlint_cases = {"scaled_shift": [{"data": (2, 3, 4, 5), "params": {"scale": 2.5}}]}\n')
    try:
        report = lint(path)
    finally:
        for name in ("scaled_shift", "_backward_scaled_shift"):
            registry.unregister(name)
    assert report.ok, report.table()
    assert report.operators[0].cases[0].checks["gradient"].verdict == "pass"
