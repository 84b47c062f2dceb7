"""RecordedCommands: the commands that a session has recorded and not sent, and the arrays that it has let go of."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.commands import Command

from .base import CodePlace
from .pending import CommandBatch, Pending

__all__ = ["RecordedCommands"]

_Recorded: TypeAlias = tuple[Command, CodePlace, np.ndarray[Any, Any] | None, Pending | None, str]
"""A command, the user's line, what travels and who waits, and the device that it runs on."""


class RecordedCommands:
    """Commands in the order in which they were recorded.

    Args:
        device: that a batch's commands run on as long as it names no other.

    Attributes:
        commands: each is recorded by one append.
        nbytes: of their tensors.
        freed: numbers of arrays and executors that are let go of with the next batch.
    """

    __slots__ = ("_device", "commands", "freed", "nbytes")

    def __init__(self, device: str) -> None:
        self._device = device
        self.commands: deque[_Recorded] = deque()
        self.nbytes = 0
        self.freed: deque[int] = deque()

    def take(self) -> CommandBatch:
        """Return the recorded commands as a batch, followed by earlier frees."""
        freed = self._take_freed()
        batch, recorded, device = CommandBatch(), self.commands, self._device
        for _ in range(len(recorded)):  # no fewer than were recorded when the arrays were freed
            command, place, tensor, pending, where = recorded.popleft()
            if where != device:
                batch.add({"do": "use_device", "device": where}, place)
                device = where
            batch.add(command, place, tensor, pending)
        if freed:
            batch.commands.append({"do": "free", "ids": freed})
            batch.places.append(None)
        batch.nbytes, self.nbytes = self.nbytes, 0
        return batch

    def _take_freed(self) -> list[int]:
        freed = []
        while self.freed:
            freed.append(self.freed.popleft())
        return freed
