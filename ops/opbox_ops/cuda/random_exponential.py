"""Exponential numbers on a GPU: -log(u) / lam of a uniform number u, four or eight of a block of the stream."""

from __future__ import annotations

from .random_draws import declare, many_a_block

__all__ = ["EXPONENTIAL"]

EXPONENTIAL = many_a_block("exponential", 'a >= 0 ? -log(point) / A(a) : A(nan(""))')
declare("exponential", EXPONENTIAL)
