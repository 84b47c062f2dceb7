"""All rows of the self-check, the most used operators first: if the time is up, the others stay unchecked."""

from __future__ import annotations

from . import arrays, draws, images, joins, layers
from .row import Row

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (*layers.ROWS, *joins.ROWS, *arrays.ROWS, *images.ROWS, *draws.ROWS)
