"""Why an operator takes longer than MXNet 1.9.1's on the CPU: printed by operators.py beside its ratio."""

from __future__ import annotations

__all__ = ["REASONS"]

FEW = "dozens of NumPy calls on a few numbers"

REASONS: dict[str, str] = {}
