"""How long the generated campaigns are: `make fuzz` makes them many times as long as `make test` does."""

from __future__ import annotations

import os

__all__ = ["FUZZ"]

FUZZ = int(os.environ.get("OPBOX_FUZZ", "1"))
"""What the number of examples of every campaign is multiplied by."""
