"""Prometheus metrics of served models, under Triton's names: dashboards made for Triton show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

__all__ = ["model_registry"]

COUNTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "nv_inference_request_success": ("Requests that were answered.", ("inference_stats", "success", "count")),
    "nv_inference_request_failure": ("Requests that failed.", ("inference_stats", "fail", "count")),
    "nv_inference_count": ("Rows: examples of all requests.", ("inference_count",)),
    "nv_inference_exec_count": ("Runs, each of one or more requests.", ("execution_count",)),
    "nv_cache_num_hits_per_model": ("Answers that were kept.", ("inference_stats", "cache_hit", "count")),
    "nv_cache_num_misses_per_model": ("Answers that were not.", ("inference_stats", "cache_miss", "count")),
}
"""By name: what it counts, and where it stands in a version's statistics."""
DURATIONS_US: Mapping[str, tuple[str, Sequence[str]]] = {
    "nv_inference_request_duration_us": ("Time of answered requests.", ("inference_stats", "success", "ns")),
    "nv_inference_queue_duration_us": ("Their time until their run.", ("inference_stats", "queue", "ns")),
    "nv_inference_compute_input_duration_us": ("0.", ("inference_stats", "compute_input", "ns")),
    "nv_inference_compute_infer_duration_us": ("Time of their runs.", ("inference_stats", "compute_infer", "ns")),
    "nv_inference_compute_output_duration_us": ("0.", ("inference_stats", "compute_output", "ns")),
}
"""The same of microseconds, from nanoseconds."""


def model_registry(rows: Sequence[Mapping[str, Any]]) -> CollectorRegistry:
    """The metrics of models.

    Args:
        rows: the statistics of each version, with its name and version, as the Open Inference Protocol has them.
    """
    registry = CollectorRegistry()
    registry.register(_ModelCollector(rows))
    return registry


class _ModelCollector(Collector):
    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        if not self._rows:
            return
        for table, unit in ((COUNTS, 1), (DURATIONS_US, 1000)):
            for name, (text, keys) in table.items():
                # A counter's name would end with _total here, and Triton's do not.
                metric = Metric(name, text, "unknown")
                for row in self._rows:
                    metric.add_sample(name, {"model": row["name"], "version": row["version"]}, _of(row, keys) // unit)
                yield metric


def _of(row: Mapping[str, Any], keys: Sequence[str]) -> int:
    value: Any = row
    for key in keys:
        value = value[key]
    return int(value)
