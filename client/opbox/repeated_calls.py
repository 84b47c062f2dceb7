"""Attempts: decides whether a call that failed is made again, and when."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError, NotReadyError, TransportError

from .call_numbers import CallNumbers

__all__ = ["Attempts", "again"]

RESTART_S = 0.25
"""Maximum seconds between two attempts to reach a server whose connection broke."""
FIRST_TRIES = 3
"""Number of attempts to get an answer of a server that has never answered."""


def again(error: MXNetError) -> MXNetError:
    """The error of a call that may be made again at once."""
    error.retry_after = 0.0
    return error


class Attempts:
    """The attempts of one call. Those of a session's calls share a number, so that the server runs it once.

    Args:
        method, path: of the call.
        patience: seconds to try.
        numbers: gives the call its number.
        gateway_met: whether a gateway's limits have been met, so that every call may need its number.

    Attributes:
        number: of the call; None where it may run twice.
        begun: when it began, by time.monotonic.
        received: bytes of its body that the server has, where it goes in parts.
        running: whether the server has said that it still runs.
        body: the headers and pieces of its body, once it is settled whether it is compressed: parts are of one body.
    """

    def __init__(
        self, method: str, path: str, patience: float, numbers: CallNumbers, *, gateway_met: bool = False
    ) -> None:
        self._delete = method == "DELETE"
        self._patience = patience
        self._numbers = numbers
        self._failed = 0
        self._until = 0.0
        self.begun = self._attempt = time.monotonic()
        self.received, self.running = 0, False
        self.body: tuple[Mapping[str, str], Sequence[Any]] | None = None
        once = method == "POST" and (gateway_met or path.startswith(routes.SESSIONS))
        self.number = numbers.begin() if once else None

    def take_number(self) -> None:
        """Give the call a number, if it has none."""
        if self.number is None:
            self.number = self._numbers.begin()

    def pause(self, error: MXNetError, *, reached: bool) -> float | None:
        """Return the seconds until the next attempt, after one that failed; None to give up.

        Args:
            error: what it failed with.
            reached: whether the server has ever answered.
        """
        now = time.monotonic()
        if not self._failed or now - self._attempt > self._patience:  # a connection that lived is a new beginning
            self._until = now + self._patience
        broken = isinstance(error, TransportError) and error.retry_after == 0
        pause = self._next_pause(error, reached=reached, broken=broken)
        if pause is None or now + pause > self._until:
            if self._failed and broken and reached:
                seconds = f"{now - self.begun:.0f} s (OPBOX_PATIENCE sets how long to try)"
                error.reword(f"{error}; tried {self._failed + 1} times in {seconds}")
            return None
        answered = isinstance(error, NotReadyError) and not error.detail.get("unreached")
        if self.number is not None and answered:  # with an answer to this number
            self._numbers.end(self.number)
            self.number = self._numbers.begin()
            self.received, self.running = 0, False
        self._failed += 1
        self._attempt = now + pause
        return pause

    def _next_pause(self, error: MXNetError, *, reached: bool, broken: bool) -> float | None:
        pause = error.retry_after
        if pause is None or self._patience <= 0:
            return None
        if self._delete and (self._failed or not broken):  # what it ends is gone with the server
            return None
        if broken and not reached and self._failed + 1 >= FIRST_TRIES:
            return None
        return max(pause, min(RESTART_S, 0.01 * 2**self._failed)) if self._failed else pause

    def end(self) -> None:
        """Note that the call is not made again."""
        if self.number is not None:
            self._numbers.end(self.number)
