"""What an operator of the server sees: the log's reasons, and metrics by Prometheus's conventions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from opbox_service.api.metrics import OTHERS, OWNERS, Metrics
from opbox_service.device_time import DeviceTime, DeviceTimes
from opbox_service.logs import EXCEPTION_BYTES
from opbox_service.worker.pool import Stats
from tests.contract.isolation import settings
from tests.contract.live import BROKEN, FATAL, FC, IDENTITY, SLOW, TOKENS, Got, Live, symbol, var
from tests.contract.test_access import wait_for
from tests.contract.test_events import states

X = np.ones((2, 3), np.float32)


def entries(server: Live, request_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in Path(server.log.name).read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("request_id") == request_id]


@pytest.mark.parametrize(
    ("method", "path", "body", "owner", "status", "reason"),
    [
        ("POST", "/v1/forward", {"graph": IDENTITY}, "ann", 400, "input 'x' is missing"),
        ("GET", "/v1/sessions/nothing", None, "ann", 404, "session 'nothing'"),
        ("GET", "/v1/ops/Nothing", None, "ann", 404, "Nothing"),
        ("GET", "/v1/ops", None, "monitor", 403, "scope: expected a token with 'run'"),
        ("GET", "/nowhere", None, "ann", 404, "GET /nowhere: expected one of the routes"),
        ("PUT", "/v1/forward", None, "ann", 405, "PUT /v1/forward: expected"),
        ("POST", "/v1/infer_shape", {"graph": symbol(*(var(f"v{i}") for i in range(2001)))}, "ann", 413, "2001"),
        (
            "POST",
            "/v1/infer_shape",
            {"graph": FC, "shapes": {"x": [2, 3], "w": [5, 3]}},
            "ann",
            422,
            "weight: expected",
        ),
        ("POST", "/v1/sessions", {"device": "gpu:77"}, "ann", 501, "device 'gpu:77' is not available"),
    ],
)
def test_the_log_has_the_reason_of_what_is_refused(
    server: Live, method: str, path: str, body: Any, owner: str, status: int, reason: str
) -> None:
    id = f"reason-{time.monotonic_ns()}"
    answer = server.clients[owner].request(method, path, json=body, headers={"X-Request-Id": id})
    assert answer.status_code == status
    wait_for(lambda: entries(server, id))
    (entry,) = entries(server, id)
    assert entry["status"] == status
    assert reason in entry["error"]
    assert entry["error"] == answer.json()["error"]


def logged(server: Live, answer: Got, status: int, reason: str) -> None:
    """The log has the status and the reason of an answer."""
    assert (answer.status, reason in answer.error) == (status, True), answer.header
    id = answer.http["x-request-id"]
    wait_for(lambda: entries(server, id))
    (entry,) = entries(server, id)
    assert (entry["status"], entry["error"]) == (status, answer.error)


def test_the_log_has_the_reason_of_what_a_session_is_refused(server: Live) -> None:
    session = server.session()
    zeros = {"do": "zeros", "ids": [1], "shape": [2], "dtype": "float32"}
    assert session.run(zeros).status == 200
    logged(server, session.run(zeros), 409, "id 1 is taken")
    assert session.delete().status == 200
    logged(server, session.run(zeros), 410, "was deleted")


def test_the_log_has_the_reason_of_what_a_server_cannot_do(start: Callable[..., Live], tmp_path: Path) -> None:
    limits = {"OPBOX_DEADLINE_S": "0.5", "OPBOX_MAX_SESSIONS": "1", "OPBOX_MAX_CHECKPOINTS": "0"}
    server = start("process", OPBOX_STATE_DIR=str(tmp_path), **limits)
    session = server.session()
    logged(server, server.call("POST", "/v1/sessions", {}), 429, "sessions: expected at most 1")
    saved = session.run({"do": "checkpoint", "name": "a", "arrays": {}})
    logged(server, saved, 507, "checkpoint 'a': expected none, as your quota is 0, got one: save the session's arrays")
    logged(server, server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X}), 504, "0.5 s")
    logged(server, server.call("POST", "/v1/forward", {"graph": FATAL}, {"x": X}), 503, "worker")


def test_the_log_has_the_reason_of_a_fault_of_the_servers_own(server: Live) -> None:
    answer = server.call("POST", "/v1/forward", {"graph": BROKEN}, {"x": X})
    assert answer.status == 500
    assert "KeyError: 'a-fault-of-the-operator'" in answer.error
    id = answer.http["x-request-id"]
    wait_for(lambda: [entry for entry in entries(server, id) if entry["event"] == "request"])
    (entry,) = entries(server, id)
    assert (entry["level"], entry["status"], entry["error"]) == ("error", 500, answer.error)
    wrapped, cause = entry["exception"]
    assert (cause["exc_type"], cause["exc_value"]) == ("KeyError", "'a-fault-of-the-operator'")
    assert cause["frames"][-1]["filename"].endswith("slow_ops.py")
    assert wrapped["exc_type"] == "MXNetError"


@pytest.mark.parametrize("owner", ["ann", "py"])
def test_the_log_line_of_an_internal_error_has_its_traceback(start: Callable[..., Live], owner: str) -> None:
    """In a worker that sessions share, and in a session's own process: nothing of it goes to the client."""
    server = start("process", **({} if owner == "ann" else settings()))
    session = server.session(owner)
    x = {"do": "invoke", "op": "_test_unruly", "inputs": [1], "outputs": [2]}
    answer = session.run({"do": "put", "id": 1, "tensor": "x"}, x, {"do": "fetch", "id": 2, "as": "y"}, x=X)
    assert (answer.status, answer.header["type"]) == (500, "InternalError")
    assert "recursion" not in str(answer.header)
    id = answer.http["x-request-id"]
    wait_for(lambda: entries(server, id))
    (entry,) = entries(server, id)
    exception = entry["exception"][-1]
    assert (entry["event"], exception["exc_type"]) == ("request", "RecursionError")
    assert "maximum recursion depth exceeded" in exception["exc_value"]
    assert exception["frames"][-1]["name"] == "_unruly"
    assert len(json.dumps(entry["exception"])) <= EXCEPTION_BYTES


def test_a_graph_that_is_to_be_sent_is_no_error(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_LOG_LEVEL="debug")
    unknown = "sha256:" + "0" * 64
    answer = server.json("POST", "/v1/infer_shape", {"graph": unknown, "shapes": {"x": [2, 3]}})
    assert answer.status == 404
    id = answer.http["x-request-id"]
    wait_for(lambda: entries(server, id))
    (entry,) = entries(server, id)
    assert (entry["level"], entry["status"], entry["error"]) == ("debug", 404, answer.error)
    # A name that nobody knows is one, and so stands among the errors of the page.
    lost = server.json("GET", "/v1/ops/FullyConected")
    errors = next(states(server, "ann"))["errors"]
    assert [error["error"] for error in errors] == [lost.error]


def families(server: Live) -> dict[str, Any]:
    text = server.clients["monitor"].get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_follow_the_conventions(server: Live) -> None:
    server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X})
    metrics = families(server)
    assert metrics["opbox_build_info"].samples[0].labels.keys() == {"version", "python"}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= set(metrics)
    duration = metrics["opbox_request_duration_seconds"]
    bounds = sorted({float(sample.labels["le"]) for sample in duration.samples if "le" in sample.labels})
    assert bounds[-2:] == [300.0, float("inf")]  # the deadline, and what took longer
    # Every time is in seconds, every size in bytes, but for those of models, whose names are Triton's.
    metrics = {name: family for name, family in metrics.items() if not name.startswith("nv_")}
    assert not [name for name in metrics if not name.startswith(("opbox_", "process_"))]
    assert not [name for name in metrics if name.endswith(("_ms", "_milliseconds", "_kb", "_mb", "_time"))]


def test_metrics_tell_device_time_by_owner(server: Live) -> None:
    place = '{device="cpu",owner="bob"}'
    before = server.metric(f"opbox_runs_total{place}")
    session = server.session("bob")
    session.run({"do": "put", "id": 1, "tensor": "x"}, x=X)
    server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, owner="bob")
    wait_for(lambda: server.metric(f"opbox_runs_total{place}") >= before + 2)
    assert server.metric(f"opbox_compute_seconds_total{place}") > 0
    assert server.metric(f"opbox_queue_seconds_total{place}") > 0
    assert server.metric('opbox_owner_requests_total{owner="bob"}') > 0


def test_a_session_with_code_counts_for_its_owner(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session("py", code=True)
    session.run({"do": "put", "id": 1, "tensor": "x"}, x=X)
    wait_for(lambda: server.metric('opbox_runs_total{device="cpu",owner="py"}') >= 1)


def test_what_a_deleted_session_with_code_did_last_is_counted(start: Callable[..., Live]) -> None:
    server, place = start("process"), '{device="cpu",owner="py"}'
    session = server.session("py", code=True)
    for _ in range(20):
        session.run({"do": "put", "id": 1, "tensor": "x"}, x=X)
    time.sleep(0.02)  # an answer leaves a moment before its batch is counted
    session.delete()
    wait_for(lambda: server.metric(f"opbox_runs_total{place}") >= 20)


def test_a_command_that_a_session_with_code_is_deleted_in_is_counted(start: Callable[..., Live]) -> None:
    server, place = start("process"), '{device="cpu",owner="py"}'
    session = server.session("py", code=True)
    session.run(
        {"do": "put", "id": 1, "tensor": "x"},
        {"do": "bind", "id": 2, "graph": SLOW, "args": {"x": 1}, "outputs": [3]},
        x=X,
    )
    session.run({"do": "forward", "executor": 2}, wait=False)  # for 1.5 seconds
    time.sleep(1)
    session.delete()
    wait_for(lambda: server.metric(f"opbox_compute_seconds_total{place}") >= 0.5)
    assert server.metric(f"opbox_compute_seconds_total{place}") < 5


def test_owners_are_a_bounded_number_of_labels() -> None:
    times = {(f"owner{i}", "cpu"): DeviceTime(1.0, 2.0, 3) for i in range(OWNERS + 50)}
    metrics = Metrics(lambda: Stats(0, 0, {}, 0, device_times=times), 300.0)
    for i in range(OWNERS + 50):
        metrics.count("GET", "/v2", 200, 0.001, 0, 0, f"owner{i}")
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    for name in ("opbox_owner_requests", "opbox_runs"):
        owners = {sample.labels["owner"]: sample.value for sample in families[name].samples}
        assert len(owners) == OWNERS + 1
        assert owners[OTHERS] == 50 * (3 if name == "opbox_runs" else 1)


@pytest.mark.parametrize(
    "rows",
    [
        [["ann", "cpu", float("nan"), 0, 1]],
        [["ann", "cpu", -1, 0, 1]],
        [["ann", 3, 0, 0, 1]],
        [["ann", "cpu", 0, 0]],
        [["ann", "cpu", 0, 0, 1.5]],
        ["row"],
        3,
    ],
)
def test_what_a_process_with_code_says_of_its_time_is_checked(rows: Any) -> None:
    times = DeviceTimes()
    with pytest.raises((ValueError, TypeError)):
        times.add_rows(rows)
    assert times.sums() == {}
    times.add_rows([["ann", "cpu", 1e30, 1e30, 1]])
    assert times.sums()["ann", "cpu"].compute_s <= 86_400


def test_an_unauthorised_call_belongs_to_nobody(server: Live) -> None:
    assert httpx.get(f"{server.url}/v1/ops", headers={"Authorization": "Bearer nobody-knows"}).status_code == 401
    owners = {sample.labels["owner"] for sample in families(server)["opbox_owner_requests"].samples}
    assert owners <= set(TOKENS)
