"""`GET /v1/events` and `GET /v1/devices`: who is told what, and when a stream ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.contract.live import FC, Live, symbol, var


def states(server: Live, owner: str, **headers: str) -> Iterator[dict[str, Any]]:
    """The data of the events that an owner is sent."""
    with server.clients[owner].stream("GET", "/v1/events", headers=headers) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        event = ""
        for line in stream.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                event = value
            elif field == "data":
                assert event == "state"
                yield json.loads(value)


def test_a_user_is_told_of_their_own(server: Live) -> None:
    mine, other = server.session(), server.session(owner="bob")
    server.json("POST", "/v1/forward", {"graph": FC}, owner="bob")
    assert server.json("POST", "/v1/infer_shape", {"graph": "sha256:none"}).status == 404
    stream = states(server, "ann")
    state = next(stream)
    assert state["you"] == {"owner": "ann", "scopes": ["run"]}
    assert [session["id"] for session in state["sessions"] if session["id"] in (mine.id, other.id)] == [mine.id]
    assert {session["owner"] for session in state["sessions"]} == {"ann"}
    assert {entry["owner"] for entry in state["errors"]} == {"ann"}
    assert state["errors"][0]["status"] == 404
    assert "sha256" in state["errors"][0]["error"]
    assert "workers" not in state
    assert state["devices"][0]["device"] == "cpu"
    server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {"x": [2, 3]}})
    server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {"x": [2, 3]}}, owner="bob")
    requests = next(stream)["requests"]
    assert [row["route"] for row in requests["routes"]] == ["POST /v1/infer_shape"]
    assert requests["routes"][0]["p50_ms"] > 0
    stream.close()
    mine.delete()
    other.delete()


def test_a_user_is_told_of_the_queue(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_THREADS="1")
    server.session()
    place = {"calls_before": 0, "wait_s": 0.0, "waiting": 0}
    until = time.monotonic() + 60
    # The session's opening may still hold the only place when the first state is sent.
    for state in states(server, "ann"):
        if all(state["sessions"][0][name] == value for name, value in place.items()):
            break
        assert time.monotonic() < until, "the queue was never empty"
    slow = symbol(var("x"), *(("_test_slow", f"y{i}", {"seconds": "0.1"}, [i]) for i in range(10)))
    x = {"x": np.ones(4, np.float32)}
    seen = threading.Event()

    def work() -> None:
        while not seen.is_set():
            server.call("POST", "/v1/forward", {"graph": slow}, x, "bob")

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    until = time.monotonic() + 60
    try:
        for state in states(server, "ann"):
            if state["sessions"][0]["calls_before"] >= 1:
                break
            assert time.monotonic() < until, "nothing of the queue was told"
    finally:
        seen.set()
        for caller in callers:
            caller.join()


def test_an_administrator_is_told_of_everybody_s(server: Live) -> None:
    sessions = {server.session().id: "ann", server.session(owner="bob").id: "bob"}
    stream = states(server, "boss")
    state = next(stream)
    owners = {session["id"]: session["owner"] for session in state["sessions"]}
    assert owners.items() >= sessions.items()
    assert {"ready": True, "isolation": server.isolation}.items() <= state["server"].items()
    assert state["workers"]
    assert sum(row["sessions"] or 0 for row in state["workers"]) >= 2
    stream.close()


def test_a_monitor_is_told_figures_and_nobody_s_errors(server: Live) -> None:
    session = server.session()
    assert server.json("POST", "/v1/forward", {"graph": "none"}).status >= 400
    stream = states(server, "monitor")
    state = next(stream)
    assert state["workers"]
    assert state["sessions"] == []
    assert {entry["owner"] for entry in state["errors"]} <= {"monitor"}  # tests before this one may have made some
    server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {"x": [2, 3]}})
    assert next(stream)["requests"]["per_second"] > 0
    stream.close()
    session.delete()


def test_events_need_a_token_with_a_scope(server: Live) -> None:
    assert httpx.get(f"{server.url}/v1/events").status_code == 401
    assert server.clients["cuda"].get("/v1/events").status_code == 403
    assert server.clients["cuda"].get("/v1/devices").status_code == 403


def test_devices_tell_what_sessions_take(server: Live) -> None:
    session = server.session()
    used = sum(row["used_bytes"] for row in server.json("GET", "/v1/devices").header["devices"])
    session.run({"do": "put", "id": 1, "tensor": "x"}, x=np.zeros(1 << 21, np.float32))
    rows = server.json("GET", "/v1/devices").header["devices"]
    assert sum(row["used_bytes"] for row in rows) - used >= 8 << 20
    for row in rows:
        assert row["device"] == "cpu"
        assert 0 < row["memory_used_bytes"] < row["memory_bytes"]
        assert row["limit_bytes"] > 0
    session.delete()


def test_devices_tell_what_sessions_with_code_take(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session("py", code=True)
    definition = {"do": "define", "op_type": "nothing", "sha256": "0" * 64, "bundle": {"pieces": [], "exports": []}}
    session.run(definition)  # whatever it comes to: from here on the session has a process of its own
    session.run({"do": "put", "id": 1, "tensor": "x"}, x=np.zeros(1 << 21, np.float32))
    until = time.monotonic() + 60  # a process says once a second what its session has
    while True:
        rows = server.json("GET", "/v1/devices", owner="py").header["devices"]
        if sum(row["used_bytes"] for row in rows) >= 8 << 20:
            break
        assert time.monotonic() < until, rows
        time.sleep(0.1)
    for row in rows:
        assert row["device"] == "cpu"
        assert 0 < row["memory_used_bytes"] < row["memory_bytes"]
        assert row["limit_bytes"] > 0
    session.delete()


def test_a_stream_ends_with_its_token(start: Callable[..., Live], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    rows = [{"name": "eve", "token": "eve-secret-of-22-characters", "scopes": ["run"]}]
    file.write_text(json.dumps(rows))
    server = start("none", OPBOX_TOKENS_FILE=str(file))
    headers = {"Authorization": "Bearer eve-secret-of-22-characters"}
    with httpx.stream("GET", f"{server.url}/v1/events", headers=headers, timeout=30) as stream:
        pieces = stream.iter_lines()
        while not next(pieces).startswith("data"):
            pass
        file.write_text(json.dumps([{**rows[0], "token": "another-secret"}]))
        began = time.monotonic()
        for _ in pieces:
            assert time.monotonic() < began + 20
    assert httpx.get(f"{server.url}/v1/events", headers=headers).status_code == 401


def test_a_server_that_stops_waits_for_no_watcher(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_STOP_GRACE_S="30")
    stream = states(server, "ann")
    next(stream)
    began = time.monotonic()
    server.process.terminate()
    assert list(stream) is not None
    assert server.process.wait(30) == 0
    assert time.monotonic() - began < 20
