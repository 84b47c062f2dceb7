"""LinkUse: adds up what a session's requests took on the link to their server."""

from __future__ import annotations

import threading

from opbox_protocol.transport import Travel

__all__ = ["LinkUse"]


class LinkUse:
    """Bytes and seconds of a session's requests."""

    def __init__(self) -> None:
        self._sent = self._received = 0
        self._seconds = self._engine_s = 0.0
        self._lock = threading.Lock()

    def add(self, travel: Travel) -> float:
        """Add a request; return the seconds that the server did not need for it."""
        engine_s = min(travel.engine_s, travel.seconds)
        with self._lock:
            self._sent += travel.sent
            self._received += travel.received
            self._seconds += travel.seconds
            self._engine_s += engine_s
        return travel.seconds - engine_s

    def json(self) -> dict[str, float]:
        """Return the sums."""
        with self._lock:
            link = self._seconds - self._engine_s
            return {
                "bytes_up": self._sent,
                "bytes_down": self._received,
                "seconds": self._seconds,
                "link_seconds": link,
                "link_share": link / self._seconds if self._seconds else 0.0,
            }
