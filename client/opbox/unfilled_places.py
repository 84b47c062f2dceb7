"""The places of batches that the engine refused whole: those behind them wait until each has been filled."""

from __future__ import annotations

from collections import deque

from opbox_protocol.errors import MXNetError
from opbox_protocol.transport import Transport

__all__ = ["TAKEN", "UnfilledPlaces"]

TAKEN = (404, 409, 410)
"""Statuses of a place that needs nothing: its number was taken after all, or the session has ended."""


class UnfilledPlaces:
    """Places in a session's order that nothing has come for yet. Safe to use from several threads.

    A quota that refused a batch refuses the empty one in its place as well, until there is some of it again: the place
    is filled before the next batch is sent, or while nothing is.

    Args:
        transport: the engine.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._places: deque[tuple[str, int]] = deque()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, path: str, seq: int) -> None:
        """The batch `seq` of the session whose commands go to `path` was refused whole."""
        self._places.append((path, seq))

    def clear(self) -> None:
        """Forget all: the session is gone."""
        self._places.clear()

    def fill(self) -> None:
        """Send an empty batch for each place, until a quota has nothing left.

        Raises:
            MXNetError: the engine could not be asked, or a gateway took no request. The place waits for the next time.
        """
        for _ in range(len(self._places)):
            try:
                path, seq = self._places.popleft()
            except IndexError:
                return  # another thread has taken it
            try:
                self._transport.call("POST", path, {"seq": seq, "commands": [], "wait": False})
            except MXNetError as error:
                if error.status in TAKEN:
                    continue
                self._places.appendleft((path, seq))
                if error.status != 429:
                    raise
                return
