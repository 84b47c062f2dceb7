"""The skips that a run of tests may have: their reasons, and the most of each, from `.ci/skips.toml`.

Where `OPBOX_TEST_SKIPS` names one of that file's tables, a run fails that skips a test for another reason, or more
tests for one reason than the table says. So a suite that runs nothing is not taken for one that passes.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TABLES = Path(__file__).parents[1] / ".ci" / "skips.toml"
VARIABLE = "OPBOX_TEST_SKIPS"


@cache
def _tables() -> dict[str, dict[str, int]]:
    return tomllib.loads(TABLES.read_text("utf-8"))


def suites() -> set[str]:
    """Return the suites whose skips are counted."""
    return set(_tables())


@cache
def most_skips(suite: str) -> dict[str, int]:
    """Return the most tests that a suite may skip, by words of the reason."""
    tables = _tables()
    if suite not in tables:
        raise KeyError(f"{VARIABLE}: expected one of {', '.join(sorted(tables))}, got {suite!r}; see {TABLES.name}")
    return {str(words): int(most) for words, most in tables[suite].items()}


def unexpected_skips(suite: str, reasons: Iterable[str]) -> list[str]:
    """Return a sentence for each reason that the suite may not have, or has too often."""
    table = most_skips(suite)
    counts = Counter(next((words for words in table if words in reason), reason) for reason in reasons)
    sentences = []
    for reason, count in counts.items():
        if count > table.get(reason, 0):
            expected = f"at most {table[reason]}" if reason in table else "no"
            sentences.append(f"{suite}: expected {expected} skipped tests with the reason {reason!r}, got {count}")
    return sorted(sentences)


def suite_of_this_run() -> str | None:
    """Return the suite that the environment names; None where skips are not counted."""
    return os.environ.get(VARIABLE) or None
