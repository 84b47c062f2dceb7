"""Recent requests to the server, counted while a client watches, and recent errors, counted always."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ErrorEntry", "RequestEntry", "Traffic", "quantile"]

WINDOW_S = 10.0
"""Length in seconds of the window that `requests` counts."""
MAX_REQUESTS = 5000
"""Maximum number of requests to remember; with more, the window is shorter."""
MAX_ERRORS = 200
ERRORS_TOLD = 20


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """A request that was answered.

    Attributes:
        at: by time.monotonic.
        route: its method, and its path with the parameters' names.
        seconds: that it took.
    """

    at: float
    owner: str
    route: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """A request that was answered with an error.

    Attributes:
        time: seconds since 1970.
        error: the sentence that it was answered with.
    """

    time: float
    owner: str
    request_id: str
    method: str
    path: str
    status: int
    error: str


class Traffic:
    """Counts recent requests while a client watches, and recent errors always.

    Attributes:
        watchers: how many watch; without any, requests are not noted.
    """

    def __init__(self) -> None:
        self.watchers = 0
        self._since = 0.0
        self._requests: deque[RequestEntry] = deque(maxlen=MAX_REQUESTS)
        self._errors: deque[ErrorEntry] = deque(maxlen=MAX_ERRORS)

    def watch(self) -> None:
        """Count requests from now on, until `unwatch`."""
        if not self.watchers:
            self._requests.clear()
            self._since = time.monotonic()
        self.watchers += 1

    def unwatch(self) -> None:
        """Remove one watcher."""
        self.watchers -= 1

    def note(self, owner: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.append(RequestEntry(time.monotonic(), owner, route, status, seconds))

    def note_error(self, owner: str, request_id: str, method: str, path: str, status: int, error: str) -> None:
        """A request was answered with an error."""
        self._errors.append(ErrorEntry(time.time(), owner, request_id, method, path[:120], status, error[:500]))

    def errors(self, owner: str | None = None) -> list[dict[str, Any]]:
        """The latest errors, the newest first: everybody's, or an owner's."""
        mine = [entry for entry in reversed(self._errors) if owner in (None, entry.owner)]
        return [asdict(entry) for entry in mine[:ERRORS_TOLD]]

    def requests(self, owner: str | None = None) -> dict[str, Any]:
        """Return requests per second and their durations, of all owners or of one.

        Returns:
            `seconds`, the time that it is about; and the same figures for all and by route, the busiest first:
            `per_second`, `errors` (how many), `p50_ms`, `p95_ms`, `p99_ms`.

        Example:
            >>> traffic.requests()["per_second"]
            812.4
        """
        now = time.monotonic()
        since = max(self._since, now - WINDOW_S)
        entries = list(self._requests)  # at once: a thread may look at them while others come
        if len(entries) == MAX_REQUESTS:
            since = max(since, entries[0].at)
        span = max(now - since, 1e-3)
        by_route: dict[str, list[RequestEntry]] = {}
        recent = [entry for entry in entries if entry.at >= since and owner in (None, entry.owner)]
        for entry in recent:
            by_route.setdefault(entry.route, []).append(entry)
        routes = [{"route": route, **_figures(answered, span)} for route, answered in by_route.items()]
        routes.sort(key=lambda row: -row["per_second"])
        return {"seconds": round(span, 2), **_figures(recent, span), "routes": routes}


def _figures(entries: Sequence[RequestEntry], span: float) -> dict[str, Any]:
    times = sorted(entry.seconds for entry in entries)
    return {
        "per_second": round(len(entries) / span, 2),
        "errors": sum(entry.status >= 400 for entry in entries),
        **{f"p{share}_ms": quantile(times, share / 100) for share in (50, 95, 99)},
    }


def quantile(times: Sequence[float], share: float) -> float | None:
    """The time in ms that `share` of the sorted times are within; None where there are none."""
    if not times:
        return None
    return round(1e3 * times[min(len(times) - 1, int(share * len(times)))], 3)
