"""Prometheus metrics: requests, latency, bytes, commands; sessions, restarts and memory as they are when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["Metrics", "route_of"]

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_KNOWN = {
    "/v1/forward",
    "/v1/backward",
    "/v1/infer_shape",
    "/v1/infer_type",
    "/v1/graphs",
    "/v1/ops",
    "/v1/sessions",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/metrics",
    "/openapi.json",
}


def route_of(path: str) -> str:
    """A path with its ids taken out, so that there are few label values."""
    if path in _KNOWN:
        return path
    if path.startswith("/v1/sessions/"):
        return "/v1/sessions/{id}/commands" if path.endswith("/commands") else "/v1/sessions/{id}"
    return "/v1/ops/{name}" if path.startswith("/v1/ops/") else "other"


class Metrics:
    """One server's metrics.

    Args:
        facts: what the host of calls tells of itself (worker.host.Host.facts).
    """

    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
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
        self._registry.register(_Facts(facts))

    def count(self, method: str, path: str, status: int, seconds: float, received: int, sent: int) -> None:
        """One request was answered."""
        key = (method, route_of(path), status)
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


class _Facts(Collector):
    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        told = self._facts()
        yield GaugeMetricFamily("opbox_sessions", "Open sessions.", told["sessions"])
        yield CounterMetricFamily("opbox_worker_restarts", "Workers replaced after they ended.", told["restarts"])
        yield GaugeMetricFamily("opbox_code_workers", "Processes of sessions with code.", told["code_workers"])
        deaths = CounterMetricFamily("opbox_code_deaths", "Such processes that were ended, by why.", labels=["cause"])
        for cause, count in told["code_deaths"].items():
            deaths.add_metric([cause], count)
        yield deaths
        yield GaugeMetricFamily("opbox_buffer_bytes", "Transfer buffers in use.", told["buffer_bytes"])
        resident = GaugeMetricFamily("opbox_resident_bytes", "Resident memory.", labels=["process"])
        for name, value in told["rss"].items():
            resident.add_metric([name], value)
        yield resident
