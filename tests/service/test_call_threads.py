"""The threads of calls, and the figures of requests: what the hot way uses in place of heavier library classes."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from opbox_service.api.metrics import Metrics
from opbox_service.call_threads import CallThreads
from opbox_service.worker.pool import Stats

PATIENCE_S = 60.0


def test_as_many_threads_are_started_as_have_work() -> None:
    threads = CallThreads(3, "t")
    names: set[str] = set()
    done = threading.Semaphore(0)

    def work() -> None:
        names.add(threading.current_thread().name)
        done.release()

    for _ in range(20):
        threads.submit(work)
        assert done.acquire(timeout=PATIENCE_S)
    threads.shutdown()
    assert 1 <= len(names) <= 3


def test_calls_run_beside_one_another_and_the_others_wait() -> None:
    threads = CallThreads(2, "t")
    both, go = threading.Barrier(3), threading.Event()
    order: list[str] = []

    def long() -> None:
        both.wait(PATIENCE_S)
        go.wait(PATIENCE_S)

    threads.submit(long)
    threads.submit(long)
    threads.submit(lambda: order.append("third"))
    both.wait(PATIENCE_S)
    assert order == []
    go.set()
    threads.shutdown()
    assert order == ["third"]


def test_a_thread_outlives_a_call_that_fails() -> None:
    threads = CallThreads(1, "t")
    done = threading.Event()
    threads.submit(lambda: 1 // 0)
    threads.submit(done.set)
    assert done.wait(PATIENCE_S)
    threads.shutdown()


def test_nothing_is_taken_after_the_end() -> None:
    threads = CallThreads(1, "t")
    done: list[int] = []
    threads.submit(lambda: done.append(1))
    threads.shutdown()
    assert done == [1]
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(lambda: None)


def test_the_times_of_requests_are_a_histogram() -> None:
    metrics = Metrics(lambda: Stats(0, 0, {}, 0), 300.0)
    for seconds, status in ((0.001, 200), (0.0011, 200), (400.0, 504)):
        metrics.count("POST", "/v1/forward", status, seconds, 3, 5, "ann")
    metrics.count_commands(7)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    samples = families["opbox_request_duration_seconds"].samples
    by_bound = {float(sample.labels["le"]): sample.value for sample in samples if "le" in sample.labels}
    # A bound counts among what took no longer than it.
    assert by_bound[0.0005] == 0
    assert by_bound[0.001] == 1
    assert by_bound[0.0025] == by_bound[300.0] == 2
    assert by_bound[float("inf")] == 3
    (count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
    (total,) = [sample.value for sample in samples if sample.name.endswith("_sum")]
    assert count == 3
    assert total == pytest.approx(400.0021)
    requests = {sample.labels["status"]: sample.value for sample in families["opbox_requests"].samples}
    assert requests == {"200": 2, "504": 1}
    for name, value in (("received_bytes", 9), ("sent_bytes", 15), ("commands", 7)):
        assert families[f"opbox_{name}"].samples[0].value == value
