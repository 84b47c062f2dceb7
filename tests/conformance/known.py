"""What is known to differ from MXNet 1.9.1 on drawn calls, with its reason (docs/differences.md says more)."""

from __future__ import annotations

__all__ = ["DIFFERENT", "UNCOMPARED"]

UNCOMPARED: dict[str, str] = {}
"""Operators that are not called in MXNet, and why."""

DIFFERENT: dict[tuple[str, str], str] = {}
"""Operators and aspects that differ, and why."""
