"""Prometheus metrics: requests, latency, bytes, commands; sessions, restarts and memory as they are when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..worker.pool import Stats

__all__ = ["Metrics"]

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


class Metrics:
    """One server's metrics.

    Args:
        stats: the figures of the pool of workers.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        labels = ("method", "route")
        self._requests = Counter("opbox_requests", "Requests.", (*labels, "status"), registry=self._registry)
        self._seconds = Histogram(
            "opbox_request_seconds", "Time to answer.", labels, buckets=BUCKETS, registry=self._registry
        )
        self._received = Counter("opbox_received_bytes", "Bytes of bodies.", registry=self._registry)
        self._sent = Counter("opbox_sent_bytes", "Bytes of answers.", registry=self._registry)
        self._commands = Counter("opbox_commands", "Session commands taken.", registry=self._registry)
        self.in_flight = Gauge("opbox_in_flight", "Requests being answered.", registry=self._registry)
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}
        self._registry.register(_StatsCollector(stats))

    content_type = CONTENT_TYPE_LATEST

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """One request was answered; `route` is the path with its parameters' names, so that there are few labels."""
        key = (method, route, status)
        children = self._children.get(key)
        if children is None:
            children = self._children[key] = (
                self._requests.labels(key[0], key[1], str(status)),
                self._seconds.labels(key[0], key[1]),
            )
        children[0].inc()
        children[1].observe(seconds)
        self._received.inc(received)
        self._sent.inc(sent)

    def count_commands(self, number: int) -> None:
        """A batch of commands was taken."""
        self._commands.inc(number)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)


class _StatsCollector(Collector):
    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily("opbox_sessions", "Open sessions.", stats.sessions)
        yield CounterMetricFamily("opbox_worker_restarts", "Workers replaced after they ended.", stats.restarts)
        yield GaugeMetricFamily("opbox_code_workers", "Processes of sessions with code.", stats.code_workers)
        deaths = CounterMetricFamily("opbox_code_deaths", "Such processes that were ended, by why.", labels=["cause"])
        for cause, count in stats.code_deaths.items():
            deaths.add_metric([cause], count)
        yield deaths
        yield GaugeMetricFamily("opbox_buffer_bytes", "Transfer buffers in use.", stats.buffer_bytes)
        resident = GaugeMetricFamily("opbox_resident_bytes", "Resident memory.", labels=["process"])
        for name, value in stats.resident.items():
            resident.add_metric([name], value)
        yield resident
