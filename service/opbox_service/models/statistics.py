"""ModelStatistics: counts and times of a model's requests and runs, in the form of the Open Inference Protocol."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["ModelStatistics"]

LATEST = 1000
"""Number of requests whose times the percentiles are of."""


KINDS = ("success", "fail", "queue", "compute_infer", "cache_hit", "cache_miss")
"""What is counted of requests, by the protocol's names."""
COPIES = ("compute_input", "compute_output")
"""Times that the protocol has apart, and that are part of `compute_infer` here: as often, and no time."""


class _EventTimes:
    """A number of events, and the nanoseconds that they took."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.ns += int(seconds * 1e9)

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class ModelStatistics:
    """The figures of one version since it was loaded. Safe to call from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._examples = self._runs = self._last_ms = 0
        self._by_kind = {kind: _EventTimes() for kind in KINDS}
        self._sizes: dict[int, _EventTimes] = {}
        self._latest: deque[float] = deque(maxlen=LATEST)

    def succeeded(self, examples: int, waited_s: float, whole_s: float, run_s: float | None) -> None:
        """Count a request that was answered.

        Args:
            examples: of its batch axis.
            waited_s: seconds until its run began.
            whole_s: seconds from its coming to its answer.
            run_s: seconds of its run, which it may have shared with others; None: no run was needed.
        """
        with self._lock:
            self._succeeded(examples, waited_s, whole_s, run_s)

    def _succeeded(self, examples: int, waited_s: float, whole_s: float, run_s: float | None) -> None:
        self._examples += examples
        if run_s is not None:
            self._by_kind["compute_infer"].add(run_s)
        self._by_kind["success"].add(whole_s)
        self._latest.append(whole_s)
        self._by_kind["queue"].add(waited_s)
        self._last_ms = int(time.time() * 1e3)

    def failed(self, whole_s: float) -> None:
        """Count a request that was answered with an error."""
        with self._lock:
            self._by_kind["fail"].add(whole_s)

    def ran(self, examples: int, seconds: float) -> None:
        """Count a run of so many examples."""
        with self._lock:
            self._ran(examples, seconds)

    def ran_alone(self, examples: int, seconds: float, waited_s: float, whole_s: float) -> None:
        """Count a run that was one request's; see `ran` and `succeeded`."""
        with self._lock:
            self._ran(examples, seconds)
            self._succeeded(examples, waited_s, whole_s, seconds)

    def _ran(self, examples: int, seconds: float) -> None:
        self._runs += 1
        sizes = self._sizes.get(examples)
        if sizes is None:
            sizes = self._sizes[examples] = _EventTimes()
        sizes.add(seconds)

    def looked_up(self, seconds: float, *, hit: bool) -> None:
        """Count a look into the response cache."""
        with self._lock:
            self._by_kind["cache_hit" if hit else "cache_miss"].add(seconds)

    def summary(self) -> dict[str, Any]:
        """Requests, failures, the median and 99th percentile of the latest, and the number of runs by their size."""
        with self._lock:
            latest = sorted(self._latest)
            return {
                "requests": self._by_kind["success"].count + self._by_kind["fail"].count,
                "failed": self._by_kind["fail"].count,
                "p50_ms": 1e3 * latest[len(latest) // 2] if latest else None,
                "p99_ms": 1e3 * latest[int(len(latest) * 0.99)] if latest else None,
                "batches": {str(size): durations.count for size, durations in sorted(self._sizes.items())},
            }

    def to_json(self) -> Mapping[str, Any]:
        """The figures, but for the model's name and version.

        As Triton's, `inference_stats` counts requests, each with its whole run, and `batch_stats` counts runs.
        """
        with self._lock:
            kinds = {kind: durations.to_json() for kind, durations in self._by_kind.items()}
            return {
                "last_inference": self._last_ms,
                "inference_count": self._examples,
                "execution_count": self._runs,
                "inference_stats": kinds | _copies(kinds["compute_infer"]),
                "batch_stats": [
                    {"batch_size": size, "compute_infer": runs, **_copies(runs)}
                    for size, runs in ((size, runs.to_json()) for size, runs in sorted(self._sizes.items()))
                ],
            }


def _copies(runs: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The figures of COPIES beside those of runs: Triton's tools refuse counts that differ."""
    return {kind: {"count": runs["count"], "ns": 0} for kind in COPIES}
