"""Tests whose outcome hangs on what they test, and not on how they are called or on a module's constants."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
SET_CONSTANT = re.compile(
    r"""setattr\(\s*(?:"[\w.]+\.(?P<dotted>_?[A-Z][A-Z0-9_]{2,})"|[\w.]+,\s*"(?P<name>_?[A-Z][A-Z0-9_]{2,})")"""
)
CONSTANTS_SET = 84
"""Times that tests set a constant of a module, most of them thresholds of the CPU's kernels. It may only fall: a test
passes a limit as an argument, whose default is the constant."""
OWN_NAME = re.compile(r"request\.node\.(?:name|nodeid)|PYTEST_CURRENT_TEST")


def test_few_tests_set_a_modules_constants() -> None:
    places = [
        f"{path.relative_to(TESTS)}: {match['dotted'] or match['name']}"
        for path in sorted(TESTS.rglob("*.py"))
        for match in SET_CONSTANT.finditer(path.read_text("utf-8"))
        if (match["dotted"] or match["name"]) != "CDLL"
    ]
    assert len(places) <= CONSTANTS_SET, "\n".join(places)


def test_no_test_chooses_by_its_own_name() -> None:
    files = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    assert not [path.name for path in files if OWN_NAME.search(path.read_text("utf-8"))]
