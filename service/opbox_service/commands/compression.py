"""Gradient compression: what stores of keys and values send of gradients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from opbox_ops.update.compression import quantize_2bit

from ..executor.allocation import allocate
from ..task import checkpoint
from ..validation import Expected, InPieces, Strict
from .array_table import ArrayTable
from .command import Command, Exchange, Id

__all__ = ["COMMANDS", "Compress"]

Threshold = Annotated[float, Field(gt=0, allow_inf_nan=False), Expected("a finite number above 0")]


class CompressCall(Strict):
    """One gradient, what waited of earlier ones, and the new array for what is sent."""

    gradient: Id
    residual: Id
    out: Id


class Compress(Command):
    """Compress gradients to 2 bits a number: new arrays of -threshold, 0 and threshold; residuals keep the rest."""

    do: Literal["compress"]
    threshold: Threshold
    calls: Annotated[list[CompressCall], InPieces()]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(*(call.out for call in self.calls))
        backend = table.backend
        for call in self.calls:
            checkpoint()
            gradient, residual = table.read(call.gradient), table.writable(call.residual)
            out = allocate(backend, tuple(residual.shape), residual.dtype, overwritten=True)
            quantize_2bit(backend.xp, gradient, residual, self.threshold, out)
            table.keep(call.out, out)


COMMANDS = (Compress,)
