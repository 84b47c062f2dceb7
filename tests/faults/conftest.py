"""Servers of a test's own."""

from __future__ import annotations

from tests.contract.conftest import start

__all__ = ["start"]
