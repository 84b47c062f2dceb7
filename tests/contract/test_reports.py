"""What trainings report: curves of an open session and of an ended one, for its owner alone, within bounds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.context import current_context
from tests.contract.live import TOKENS, Live
from tests.contract.test_events import states

PATIENCE_S = 60.0


def wait_for(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, "nothing was reported"
        time.sleep(0.05)


def curves(server: Live, id: str, owner: str = "ann") -> dict[str, dict[str, Any]]:
    answer = server.json("GET", f"/v1/history/{id}", owner=owner)
    assert answer.status == 200, answer.header
    return {curve["name"]: curve for curve in answer.header["curves"]}


def report(epoch: int | None = None, **values: float | None) -> dict[str, Any]:
    return {"do": "report", "values": values, "epoch": epoch}


@pytest.mark.parametrize(("owner", "code"), [("ann", False), ("py", True)])
def test_reports_become_curves_that_outlive_their_session(server: Live, owner: str, code: bool) -> None:
    session = server.session(owner, code=code, script="train.py", host="node7")
    for epoch in range(3):
        answer = session.run(report(epoch, loss=1 / (1 + epoch), accuracy=None if epoch == 1 else 0.5))
        assert answer.status == 200, answer.header
    wait_for(lambda: len(curves(server, session.id, owner).get("loss", {"values": ()})["values"]) == 3)
    shown = curves(server, session.id, owner)
    assert shown["loss"]["values"] == [1, 0.5, pytest.approx(1 / 3)]
    assert shown["accuracy"]["values"] == [0.5, None, 0.5]
    assert shown["loss"]["epochs"] == [0, 1, 2]
    assert session.run(report(loss=0.25)).status == 200
    session.delete()
    wait_for(lambda: curves(server, session.id, owner)["loss"]["values"][-1] == 0.25)
    past = server.json("GET", "/v1/history", owner=owner).header["sessions"]
    (mine,) = [row for row in past if row["id"] == session.id]
    assert (mine["script"], mine["host"], mine["latest"]) == ("train.py", "node7", {"loss": 0.25, "accuracy": 0.5})
    assert mine["ended"] >= mine["created"]
    assert "deleted" in mine["reason"]


def test_an_owner_sees_only_their_own(server: Live) -> None:
    session = server.session("bob")
    session.run(report(loss=1.0))
    wait_for(lambda: curves(server, session.id, "bob"))
    assert server.json("GET", f"/v1/history/{session.id}").status == 404
    assert server.json("GET", f"/v1/history/{session.id}", owner="boss").status == 403
    session.delete()
    assert session.id not in {row["id"] for row in server.json("GET", "/v1/history").header["sessions"]}
    assert server.json("GET", f"/v1/history/{session.id}").status == 404
    administered = server.session("bob")
    administered.run(report(loss=1.0))
    (row,) = [row for row in next(states(server, "boss"))["sessions"] if row["id"] == administered.id]
    assert "latest" not in row
    administered.delete()


def test_the_events_tell_of_the_latest_values(server: Live) -> None:
    session = server.session(script="a.py")
    ended = next(states(server, "ann"))["ended"]
    session.run(report(2, loss=0.5))
    for state in states(server, "ann"):
        (row,) = [row for row in state["sessions"] if row["id"] == session.id]
        if row["reported"]:
            break
    assert row["script"] == "a.py"
    assert row["latest"]["loss"].items() >= {"step": 0, "epoch": 2, "value": 0.5}.items()
    session.delete()
    for state in states(server, "ann"):
        if state["ended"] > ended:
            break


@pytest.mark.parametrize(
    "values", [{}, {"loss": "low"}, {"": 1.0}, {"x" * 65: 1.0}, {f"loss{i}": 1.0 for i in range(17)}, [1.0]]
)
def test_reports_have_bounds(server: Live, values: Any) -> None:
    session = server.session()
    answer = session.run({"do": "report", "values": values})
    assert answer.status == 400
    assert "command 0 (report): values: expected" in answer.error
    session.delete()
    for field in ("script", "host"):
        assert server.call("POST", "/v1/sessions", {field: "x" * 256}).status == 400


def test_long_trainings_and_many_sessions_are_kept_in_part(server: Live) -> None:
    session = server.session()
    for start in range(0, 2000, 40):
        session.run(*(report(**{f"loss{i % 20}": float(start + i)}) for i in range(40)))
        time.sleep(0.05)
    wait_for(lambda: curves(server, session.id))
    session.run(report(loss1=-1.0))
    shown = wait_for(
        lambda: (c := curves(server, session.id)) and c.get("loss1", {"values": [0]})["values"][-1] == -1 and c
    )
    assert len(shown) == 16
    session.delete()
    for _ in range(35):
        server.session().delete()
    wait_for(lambda: session.id not in {row["id"] for row in server.json("GET", "/v1/history").header["sessions"]})
    assert sum(row["ended"] is not None for row in server.json("GET", "/v1/history").header["sessions"]) == 30


@pytest.fixture
def connected(server: Live) -> Iterator[Live]:
    mx.connect(server.url, TOKENS["ann"])
    yield server
    connection.use(None)


def fit() -> tuple[str, int]:
    """Train for four epochs; the session, and the requests that it took."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
    session = current_context().session
    before = session.requests
    held_out = mx.io.NDArrayIter(x, y, 20)
    module = mx.mod.Module(net)
    module.fit(mx.io.NDArrayIter(x, y, 20), held_out, eval_metric=["acc", "ce"], num_epoch=4, progress=False)
    session.wait()
    return session.id, session.requests - before


def test_fit_reports_its_metrics_in_the_requests_of_its_steps(connected: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_REPORT", "0")
    silent, requests = fit()
    assert server_rows(connected, silent)["host"] == ""
    connection.disconnect()
    connection.use(None)
    mx.connect(connected.url, TOKENS["ann"])
    monkeypatch.setenv("OPBOX_REPORT", "1")
    id, with_reports = fit()
    assert with_reports <= requests + 1  # the last validation has no step behind it
    shown = wait_for(lambda: (c := curves(connected, id)) and len(c["Validation-accuracy"]["values"]) == 4 and c)
    assert set(shown) == {
        f"{kind}-{name}" for kind in ("Train", "Validation") for name in ("accuracy", "cross-entropy")
    }
    assert shown["Validation-accuracy"]["epochs"] == [0, 1, 2, 3]
    assert shown["Validation-accuracy"]["steps"] == [4, 7, 10, 12]  # with the next step
    assert shown["Train-accuracy"]["steps"][-1] == 12
    assert server_rows(connected, id)["host"] == socket.gethostname()
    assert curves(connected, silent) == {}


def server_rows(server: Live, id: str) -> dict[str, Any]:
    (row,) = [row for row in server.json("GET", "/v1/history").header["sessions"] if row["id"] == id]
    return row


def test_a_setting_that_is_none_is_told(connected: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_REPORT", "no")
    with pytest.raises(ValueError, match="OPBOX_REPORT: expected 0 or 1, got 'no'"):
        fit()


def test_a_script_is_known_by_its_name(server: Live, tmp_path: Any) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import opbox as mx\nmx.nd.ones((2,)).asnumpy()\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    environment |= {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS["bob"]}
    subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=120)
    rows = server.json("GET", "/v1/history", owner="bob").header["sessions"]
    assert rows[0]["script"] == "mine.py", json.dumps(rows)
