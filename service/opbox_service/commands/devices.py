"""Devices: use_device names the GPU that the commands behind it run on."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ..validation import Expected
from .array_table import ArrayTable
from .command import Command, Exchange

__all__ = ["COMMANDS", "UseDevice"]


class UseDevice(Command):
    """The commands behind it run on this device, up to the next one or the batch's end.

    A session on a GPU gets another one when a batch first names it. The answer's results have the name.
    """

    changes_arrays: ClassVar[bool] = False

    do: Literal["use_device"]
    device: Annotated[
        str, Field(description="gpu:0, gpu:1; a batch begins on the session's first."), Expected("a name as 'gpu:1'")
    ]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.use(self.device)
        exchange.report(device=self.device)


COMMANDS = (UseDevice,)
