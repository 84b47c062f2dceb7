"""The oracle: MXNet in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .mxnet import Oracle, python
from .reporting import write


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what drawn calls of an operator came to at once: a run may be in slices, or be stopped."""
    write(value for key, value in report.user_properties if key == "conformance" and report.when == "call")


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """MXNet 1.9.1, one process for the session."""
    if not Path(python()).exists():
        pytest.skip("no MXNet: make conformance sets it up, or name its Python in OPBOX_ORACLE_PYTHON")
    asked = Oracle()
    yield asked
    asked.close()
