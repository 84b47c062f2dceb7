"""What the API process notes of requests: figures by route while somebody watches, errors always."""

from __future__ import annotations

import pytest

from opbox_service.api.traffic import ERRORS_TOLD, MAX_REQUESTS, Traffic, quantile


def test_quantiles_of_few_and_of_many() -> None:
    assert quantile([], 0.5) is None
    assert quantile([0.001], 0.99) == 1.0
    times = [i / 1000 for i in range(100)]
    assert (quantile(times, 0.5), quantile(times, 0.99)) == (50.0, 99.0)


def test_requests_are_counted_by_route_and_for_their_owner() -> None:
    traffic = Traffic()
    traffic.watch()
    for i in range(6):
        traffic.note("ann", "POST /a", 200, 0.001 * (i + 1))
    traffic.note("bob", "GET /b", 404, 0.5)
    everything = traffic.requests()
    assert [(row["route"], row["errors"]) for row in everything["routes"]] == [("POST /a", 0), ("GET /b", 1)]
    assert everything["errors"] == 1
    assert everything["p99_ms"] == 500.0
    mine = traffic.requests("ann")
    assert [row["route"] for row in mine["routes"]] == ["POST /a"]
    assert mine["routes"][0]["p50_ms"] == 4.0
    assert traffic.requests("nobody") == {**traffic.requests("nobody"), "per_second": 0.0, "routes": [], "p50_ms": None}


def test_more_requests_than_are_looked_at_shorten_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("opbox_service.api.traffic.time.monotonic", lambda: clock[0])
    traffic = Traffic()
    traffic.watch()
    for _ in range(2 * MAX_REQUESTS):
        clock[0] += 0.0001
        traffic.note("ann", "POST /a", 200, 0.001)
    figures = traffic.requests()
    assert figures["seconds"] == pytest.approx(MAX_REQUESTS * 0.0001, rel=0.05)
    assert figures["per_second"] == pytest.approx(10_000, rel=0.01)


def test_a_new_watcher_sees_nothing_of_before() -> None:
    traffic = Traffic()
    traffic.watch()
    traffic.note("ann", "POST /a", 200, 0.001)
    traffic.unwatch()
    traffic.watch()
    assert traffic.requests()["routes"] == []


def test_errors_are_the_latest_and_their_owners() -> None:
    traffic = Traffic()
    for i in range(30):
        traffic.note_error("ann" if i % 2 else "bob", f"r{i}", "POST", "/v1/forward" + "x" * 300, 422, "a" * 900)
    errors = traffic.errors()
    assert len(errors) == ERRORS_TOLD
    assert errors[0]["request_id"] == "r29"
    assert {entry["owner"] for entry in traffic.errors("bob")} == {"bob"}
    assert len(errors[0]["path"]) == 120
    assert len(errors[0]["error"]) == 500
