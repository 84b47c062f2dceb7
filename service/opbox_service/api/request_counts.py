"""RequestCounts: what requests, their times and their bytes come to, added up for the metrics.

The API process's loop alone counts, so that it takes no locks, and adds to plain numbers; they become Prometheus's
samples when somebody asks for the metrics. A Counter and a Histogram of prometheus_client cost several microseconds
for each request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["RequestCounts"]

LABELS = ("method", "route")


@dataclass(slots=True)
class _Durations:
    """Durations of a route's requests: the number by bucket, and the sum in seconds."""

    by_bucket: list[int]
    seconds: float = 0.0


@dataclass(slots=True)
class _Requests:
    """The requests of a route that were answered with one status."""

    durations: _Durations
    count: int = 0


class RequestCounts(Collector):
    """Counts requests, their times and their bytes for the metrics.

    Args:
        bounds: the upper bounds of the buckets of times, in seconds.
        owner_label: the label of an owner.
    """

    def __init__(self, bounds: Sequence[float], owner_label: Callable[[str], str]) -> None:
        self._bounds = (*bounds, inf)
        self._owner_label = owner_label
        self._requests: dict[tuple[str, str, int], _Requests] = {}
        self._durations: dict[tuple[str, str], _Durations] = {}
        self._of_owner: dict[str, int] = {}
        self._received = self._sent = self._commands = 0

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int, owner: str) -> None:
        """Count an answered request; `route` is the path with parameter names, so that labels are few."""
        requests = self._requests.get((method, route, status))
        if requests is None:
            requests = self._begin(method, route, status)
        requests.count += 1
        durations = requests.durations
        durations.by_bucket[bisect_left(self._bounds, seconds)] += 1
        durations.seconds += seconds
        if owner:
            label = self._owner_label(owner)
            self._of_owner[label] = self._of_owner.get(label, 0) + 1
        self._received += received
        self._sent += sent

    def count_commands(self, number: int) -> None:
        """Count a batch of commands."""
        self._commands += number

    def collect(self) -> Iterator[Metric]:
        """The samples, for Prometheus; by any thread."""
        requests = CounterMetricFamily("opbox_requests", "Requests.", labels=(*LABELS, "status"))
        for (method, route, status), counted in list(self._requests.items()):
            requests.add_metric((method, route, str(status)), counted.count)
        times = HistogramMetricFamily("opbox_request_duration_seconds", "Time to answer.", labels=LABELS)
        for place, durations in list(self._durations.items()):
            times.add_metric(place, self._buckets(durations), durations.seconds)
        owners = CounterMetricFamily("opbox_owner_requests", "Requests by whose token they had.", labels=("owner",))
        for owner, count in list(self._of_owner.items()):
            owners.add_metric((owner,), count)
        yield from (requests, times, owners)
        yield CounterMetricFamily("opbox_received_bytes", "Bytes of bodies.", self._received)
        yield CounterMetricFamily("opbox_sent_bytes", "Bytes of answers.", self._sent)
        yield CounterMetricFamily("opbox_commands", "Session commands taken.", self._commands)

    def _begin(self, method: str, route: str, status: int) -> _Requests:
        durations = self._durations.get((method, route))
        if durations is None:
            durations = self._durations[method, route] = _Durations([0] * len(self._bounds))
        requests = self._requests[method, route, status] = _Requests(durations)
        return requests

    def _buckets(self, durations: _Durations) -> list[tuple[str, float]]:
        """Return each bound with the number of requests that took no longer."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip(self._bounds, list(durations.by_bucket), strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))  # type: ignore[no-untyped-call]  # the library's
        return buckets
