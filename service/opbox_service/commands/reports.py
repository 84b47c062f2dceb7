"""Reports: losses and metrics of a training, for display to its owner."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from opbox_protocol.reports import MAX_NAME, MAX_NAMES

from ..validation import Expected
from .array_table import ArrayTable
from .command import Command, Exchange

__all__ = ["COMMANDS", "ReportMetrics"]

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Value = Annotated[float | None, Field(allow_inf_nan=False)]


class ReportMetrics(Command):
    """Report values at this step: of losses, of metrics. They are shown to the session's owner, and change nothing."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["report"]
    values: Annotated[
        dict[Name, Value],
        Field(min_length=1, max_length=MAX_NAMES, description="Values by name; null for a value that is not finite."),
        Expected(f"from 1 to {MAX_NAMES} finite numbers or null, by names of 1 to {MAX_NAME} characters"),
    ]
    epoch: int | None = Field(default=None, ge=0, lt=1 << 53, description="The epoch of the values.")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.on_report(table.steps, self.epoch, self.values)


COMMANDS = (ReportMetrics,)
