"""ONNX's own test cases of single operators: opbox gives ONNX's numbers, or says in its own words what it lacks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import onnx

from .node_cases import FED, Fed, Outcome, cases, outcome

COUNTED = "1.23.2"
"""The version of onnx whose cases are counted."""
EQUAL: dict[Fed, int] = {"every input": 602, "the first input": 499, "no input": 814}
"""How many cases are converted; each more is a gain, to be written here."""


@pytest.mark.parametrize("fed", FED)
def test_cases_of_single_operators(fed: Fed, tmp_path: Path) -> None:
    outcomes: Counter[Outcome] = Counter()
    failures = []
    for case in cases():
        try:
            outcomes[outcome(case, fed, tmp_path / "net.onnx")] += 1
        except Exception as error:
            failures.append(f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    assert not failures, "\n".join(failures)
    if onnx.__version__ == COUNTED:
        assert outcomes["equal"] == EQUAL[fed], outcomes
