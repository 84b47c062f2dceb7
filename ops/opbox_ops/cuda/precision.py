"""The setting that lets products of single precision be rounded to TF32, which tensor cores multiply."""

from __future__ import annotations

import os

__all__ = ["allow_tf32"]


def allow_tf32() -> bool:
    """Return whether OPBOX_ALLOW_TF32 is 1: factors lose 13 of 23 bits after the point, sums stay single precision."""
    return os.environ.get("OPBOX_ALLOW_TF32") == "1"
