"""CommandPlaces: the user's lines that recorded the commands of a session's last batches, for errors that come late."""

from __future__ import annotations

from collections.abc import Sequence

from opbox_protocol.errors import MXNetError

from .base import CodePlace, line_of

__all__ = ["CommandPlaces"]

KEPT_BATCHES = 256
"""Number of batches whose lines are remembered."""


class CommandPlaces:
    """For each of the last batches, the line that recorded each command."""

    def __init__(self) -> None:
        self._places: dict[int, Sequence[CodePlace]] = {}

    def add(self, seq: int, places: Sequence[CodePlace]) -> None:
        """Remember the lines of batch `seq`."""
        self._places[seq] = places
        self._places.pop(seq - KEPT_BATCHES, None)

    def clear(self) -> None:
        """Forget all: the session's numbers begin anew."""
        self._places.clear()

    def with_line(self, error: MXNetError, seq: int) -> MXNetError:
        """The error of batch `seq`, or of an earlier one that it names, with the line that recorded the command."""
        places = self._places.get(error.detail.get("seq", seq))
        command = error.detail.get("command")
        if places is None or not isinstance(command, int) or not 0 <= command < len(places):
            return error
        line = line_of(places[command])
        message = str(error)
        if line is None or line in message:
            return error
        error.reword(f"{message} ({line})")
        return error
