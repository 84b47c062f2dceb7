"""Fixtures of the operators' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled kernels, one for all tests of a file: a kernel is compiled once."""
    return tmp_path_factory.mktemp("kernels")
