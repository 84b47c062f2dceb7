"""Prometheus metrics: requests, latency, bytes, commands; sessions, device time, restarts and memory as when asked."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..device_time import DeviceTime
from ..worker.pool import Stats
from .model_metrics import model_registry
from .request_counts import RequestCounts

__all__ = ["Metrics"]

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300, 1800)
LAGS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
OWNERS = 100
"""Number of owners with a label of their own; a label stays as long as the server runs."""
OTHERS = "others"


class Metrics:
    """One server's metrics.

    Args:
        stats: the figures of the pool of workers.
        deadline_s: how long a request may take: the last bucket.

    Attributes:
        count, count_commands: see RequestCounts.
    """

    def __init__(self, stats: Callable[[], Stats], deadline_s: float) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's
        registry = self._registry = CollectorRegistry()
        buckets = (*(bound for bound in BUCKETS if bound < deadline_s), deadline_s)
        self._owners: set[str] = set()
        requests = RequestCounts(buckets, self._owner_label)
        registry.register(requests)
        self.count, self.count_commands = requests.count, requests.count_commands
        self.in_flight = Gauge("opbox_requests_in_flight", "Requests being answered.", registry=registry)
        self.loop_lag = Histogram(
            "opbox_api_loop_lag_seconds",
            "How late the API process's loop came to a timer of 5 ms, while requests were answered.",
            buckets=LAGS,
            registry=registry,
        )
        self.longest_lag = Gauge(
            "opbox_api_loop_longest_lag_seconds",
            "The longest of them; by the loop's processor time, only what it worked meanwhile.",
            ("clock",),
            registry=registry,
        )
        build = Info("opbox_build", "The server that runs.", registry=registry)
        build.info({"version": version("opbox-service"), "python": platform.python_version()})
        ProcessCollector(registry=registry)
        registry.register(_StatsCollector(stats, self._owner_label))

    content_type = CONTENT_TYPE_LATEST

    def text(self, models: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Return the metrics as Prometheus text.

        Args:
            models: the statistics of each served version; see `model_registry`.
        """
        return generate_latest(self._registry) + generate_latest(model_registry(models))

    def _owner_label(self, owner: str) -> str:
        if owner not in self._owners:
            if len(self._owners) >= OWNERS:
                return OTHERS
            self._owners.add(owner)
        return owner


class _StatsCollector(Collector):
    def __init__(self, stats: Callable[[], Stats], owner_label: Callable[[str], str]) -> None:
        self._stats = stats
        self._owner_label = owner_label

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
        resident = GaugeMetricFamily("opbox_resident_memory_bytes", "Resident memory.", labels=["process"])
        for name, value in stats.resident.items():
            resident.add_metric([name], value)
        yield resident
        yield from self._device_times(stats.device_times)

    def _device_times(self, times: dict[tuple[str, str], DeviceTime]) -> Iterator[Metric]:
        labels = ["device", "owner"]
        runs = CounterMetricFamily("opbox_runs", "Batches of commands, and calls without a session.", labels=labels)
        queue = CounterMetricFamily("opbox_queue_seconds", "Time that runs waited for their turn.", labels=labels)
        compute = CounterMetricFamily("opbox_compute_seconds", "Time that runs took.", labels=labels)
        sums: dict[tuple[str, str], DeviceTime] = {}
        for (owner, device), time in times.items():
            total = sums.setdefault((device, self._owner_label(owner)), DeviceTime())
            total.queue_s += time.queue_s
            total.compute_s += time.compute_s
            total.runs += time.runs
        for place, total in sums.items():
            runs.add_metric(place, total.runs)
            queue.add_metric(place, total.queue_s)
            compute.add_metric(place, total.compute_s)
        yield from (runs, queue, compute)
