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
# As its authors published it, it launches a block of as many threads as there are rows.
EMPTY = {"ndarray_softmax_cuda.py": {"batch 0"}}


@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name: str) -> None:
    report = lint(EXAMPLES / name)
    assert report.operators
    found = {
        check
        for each in report.operators
        for case in each.cases
        for check, v in case.checks.items()
        if v.verdict == "fail"
    }
    assert found == EMPTY.get(name, set()), report.table()
    assert not any(each.problem for each in report.operators), report.table()
