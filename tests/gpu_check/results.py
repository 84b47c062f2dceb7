"""A pytest plugin for tests on a GPU that is lent for minutes: the most telling tests first, a line on disk for each.

    python -m pytest -p tests.gpu_check.results --results FILE.jsonl --stop-after 120 …

A run that is cut off leaves the lines that it has. At its own time limit it stops between two tests, and says so.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

FAILURE = 3000
"""Characters of a failure's text that its line has."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --results, --stop-after and --first-rows."""
    parser.addoption("--results", type=Path, help="a file that gets a line of JSON for each test")
    parser.addoption("--stop-after", type=float, help="seconds from the program's start after which no test begins")
    parser.addoption("--first-rows", action="store_true", help="of each operator the first row alone")


def pytest_configure(config: pytest.Config) -> None:
    """Settle when the time is up; the processes of xdist get that with the other options."""
    if not hasattr(config.option, "stop_at"):
        limit = config.getoption("stop_after")
        config.option.stop_at = None if limit is None else began() + limit
    config.pluginmanager.register(Lines(config.getoption("results")))


def began() -> float:
    """When this process began, in seconds of `time.time`: importing and collecting take seconds too."""
    ticks = int(Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the first row of each operator before all others, then the other rows of float32, then the rest."""
    seen: set[object] = set()
    ranks = {item.nodeid: _rank(item, seen) for item in items}
    if config.getoption("first_rows"):
        config.hook.pytest_deselected(items=[item for item in items if ranks[item.nodeid]])
        items[:] = [item for item in items if not ranks[item.nodeid]]
    items.sort(key=lambda item: ranks[item.nodeid])


def _rank(item: pytest.Item, seen: set[object]) -> int:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    function = item.nodeid.partition("[")[0]
    group = function, getattr(parameters.get("case"), "op", None)
    first = group not in seen
    seen.add(group)
    if "case" not in parameters or first:
        return 0
    return 1 if parameters.get("dtype", "float32") == "float32" else 2


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave a test out once the time is up, so that none is cut off in its middle."""
    limit: float | None = item.config.option.stop_at
    return True if limit is not None and time.time() >= limit else None


class Lines:
    """Writes the line of each test that ran."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test's line: its own process does, and not the one that gathers the reports of xdist's."""
        if self._path is None or hasattr(report, "node") or (report.when != "call" and report.passed):
            return
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 4)}
        if report.failed:
            line |= {"when": report.when, "failure": str(report.longrepr)[-FAILURE:]}
        elif report.skipped:
            line["reason"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        # One write at the file's end: processes do not mix their lines.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
