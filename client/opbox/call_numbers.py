"""CallNumbers: numbers the calls that must not run twice, so that one whose answer was lost can be made again."""

from __future__ import annotations

import secrets
import threading

from opbox_protocol.wire import ANSWERED, CALL

__all__ = ["CallNumbers"]


class CallNumbers:
    """The numbers of one client's calls, and which of them are still to be answered.

    The server keeps an answer until the client says that it has come: `headers` says so with the next call.

    Example:
        >>> numbers = CallNumbers()
        >>> numbers.headers(numbers.begin())
        {'Opbox-Call': '5f0c27a1b3d4e688/1'}
    """

    def __init__(self) -> None:
        self._client = secrets.token_hex(8)
        self._last = 0
        self._open: set[int] = set()
        self._lock = threading.Lock()

    def begin(self) -> int:
        """Return the number of a new call."""
        with self._lock:
            self._last += 1
            self._open.add(self._last)
            return self._last

    def end(self, number: int) -> None:
        """Note that a call was answered, or is not made again."""
        with self._lock:
            self._open.discard(number)

    def headers(self, number: int | None) -> dict[str, str]:
        """Return the HTTP headers of a call: its number, if it has one, and up to which number answers have come."""
        if not self._last:
            return {}
        with self._lock:
            answered = min(self._open) - 1 if self._open else self._last
        headers = {} if number is None else {CALL: f"{self._client}/{number}"}
        if answered:
            headers[ANSWERED] = f"{self._client}/{answered}"
        return headers
