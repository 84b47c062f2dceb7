"""Owners' quotas from the tokens' file, what they used, and the audit log."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from opbox.http import HttpTransport
from opbox.session import Session
from opbox_protocol.errors import QuotaError
from opbox_service.accounting.usage import DayUsage, UsageLedger
from tests.contract.live import IDENTITY, SCOPES, SLOW, TOKENS, Live
from tests.contract.test_access import wait_for

X = np.ones(64, np.float32)
MIB = 1 << 20


def total(days: Iterable[DayUsage]) -> DayUsage:
    """What was used on all of them: midnight may pass at any time."""
    whole = DayUsage()
    for day in days:
        whole.add(day)
    return whole


class Box:
    """A server whose tokens and owners are in a file, and whose state outlives it."""

    def __init__(self, start: Callable[..., Live], folder: Path, isolation: str, **settings: str) -> None:
        self._start = start
        self._settings = settings
        self._isolation = isolation
        self.file, self.state = folder / "tokens.json", folder / "state"
        self.write({})
        self.server = self.again()

    def write(self, owners: Mapping[str, Any]) -> None:
        tokens = [{"name": name, "token": token, "scopes": SCOPES[name]} for name, token in TOKENS.items()]
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({"tokens": tokens, "owners": owners}))
        draft.replace(self.file)

    def again(self) -> Live:
        self.server = self._start(
            self._isolation,
            OPBOX_TOKENS="",
            OPBOX_TOKENS_FILE=str(self.file),
            OPBOX_STATE_DIR=str(self.state),
            **self._settings,
        )
        return self.server

    def usage(self, owner: str = "ann") -> dict[str, Any]:
        answer = self.server.json("GET", "/v1/usage", owner=owner)
        assert answer.status == 200, answer.header
        return answer.header

    def used(self, owner: str = "ann") -> DayUsage:
        days = self.usage(owner)["days"]
        return total(DayUsage(**{name: value for name, value in day.items() if name != "day"}) for day in days)

    def stored(self, owner: str = "ann") -> DayUsage:
        """What the file says."""
        ledger = UsageLedger(self.state / "usage.sqlite")
        try:
            return total(ledger.days(owner).get(owner, {}).values())
        finally:
            ledger.close()

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / "audit.log").read_text().splitlines()]

    def take(self, owners: Mapping[str, Any], **quotas: Any) -> None:
        """Write the file, and wait until ann has these quotas."""
        self.write(owners)
        wait_for(lambda: quotas.items() <= self.usage()["quotas"].items())


@pytest.fixture(scope="module", params=["none", "process"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("box")

    def start(isolation: str, **settings: str) -> Live:
        return Live(isolation, folder, **settings)

    box = Box(start, folder, request.param, OPBOX_WORKERS="2")
    yield box
    assert box.server.stop() == 0


@pytest.fixture
def box(shared: Box) -> Box:
    """A box that tests share; each ends its sessions, and leaves no terms behind."""
    if shared.usage()["quotas"] != shared.usage("bob")["quotas"]:
        shared.write({})
        wait_for(lambda: shared.usage()["quotas"] == shared.usage("bob")["quotas"])
    for owner in ("ann", "bob"):
        for session in shared.server.json("GET", "/v1/sessions", owner=owner).header["sessions"]:
            shared.server.json("DELETE", f"/v1/sessions/{session['id']}", owner=owner)
    return shared


def forward(server: Live, owner: str = "ann", graph: Any = IDENTITY, x: Any = X) -> Any:
    return server.call("POST", "/v1/forward", {"graph": graph}, {"x": x}, owner=owner)


def zeros(id: int, mebibytes: int) -> dict[str, Any]:
    return {"do": "zeros", "ids": [id], "shape": [mebibytes, MIB], "dtype": "int8"}


def test_quotas_of_an_owner(box: Box) -> None:
    server = box.server
    before = box.usage()["quotas"]
    assert (before["sessions"], before["weight"], before["urgency"]) == (40, 1, 3)
    refusals = box.used().refused
    assert forward(server).status == 200

    # Sessions, over both workers.
    box.take({"ann": {"sessions": 3, "weight": 2}}, sessions=3, weight=2)
    sessions = [server.session() for _ in range(3)]
    refused = server.call("POST", "/v1/sessions", {})
    assert (refused.status, refused.http["retry-after"]) == (429, "1")
    assert refused.error.startswith("sessions: expected at most 3 of an owner, got one more: end one of yours")
    assert server.session("bob").delete().status == 200
    assert sessions.pop().delete().status == 200
    sessions.append(server.session())
    assert box.usage()["now"]["sessions"] == 3

    # Memory of all sessions, over both workers; and of one.
    box.take({"ann": {"memory_bytes": 96 * MIB, "session_bytes": 64 * MIB}}, memory_bytes=96 * MIB)
    assert sessions[0].run(zeros(1, 60)).status == 200
    refused = sessions[1].run(zeros(1, 60))
    assert (refused.status, refused.error.partition(":")[0]) == (429, "memory of all your sessions")
    assert sessions[1].run(zeros(2, 16)).status == 200
    assert server.session("bob").run(zeros(1, 100)).status == 200
    assert sessions[0].run({"do": "free", "ids": [1]}).status == 200
    fresh = server.session()
    refused = fresh.run(zeros(1, 65))
    assert (refused.status, refused.error.partition(":")[0]) == (429, "session memory")
    wait_for(lambda: box.used().peak_bytes >= 76 * MIB)

    # Worker seconds of a day.
    assert forward(server, graph=SLOW).status == 200
    wait_for(lambda: box.usage()["now"]["worker_seconds"] > 1)
    box.take({"ann": {"worker_seconds": 0.5}}, worker_seconds=0.5)
    refused = forward(server)
    assert refused.status == 429
    assert refused.error.startswith("worker seconds: expected at most 0.5 of an owner in a day, got ")
    assert 0 < int(refused.http["retry-after"]) <= 86_400
    assert forward(server, "bob").status == 200
    assert server.json("GET", "/v1/sessions").status == 200  # one may look, and end
    assert sessions[2].delete().status == 200
    box.take({}, worker_seconds=0)
    assert forward(server).status == 200
    assert box.used().refused == refusals + 4

    # Requests in flight, and their bytes.
    box.take({"ann": {"in_flight": 1, "buffer_bytes": 1 << 16}}, in_flight=1)
    refused = forward(server, x=np.ones(1 << 16, np.float32))
    assert (refused.status, refused.error.partition(":")[0]) == (429, "transfer buffers")


def test_requests_in_flight(box: Box) -> None:
    box.take({"ann": {"in_flight": 1}}, in_flight=1)
    with httpx.stream(
        "GET", f"{box.server.url}/v1/events", headers={"Authorization": f"Bearer {TOKENS['ann']}"}
    ) as own:
        lines = own.iter_lines()  # which ends the stream when nobody has it any more
        next(lines)
        refused = forward(box.server)
        assert (refused.status, refused.http["retry-after"]) == (429, "1")
        assert refused.error == "requests: expected at most 1 of an owner at a time: wait for one to end"
        assert (refused.http["opbox-calls-before"], refused.http["opbox-wait"]) == ("1", "1")
        assert forward(box.server, "bob").status == 200
    wait_for(lambda: forward(box.server).status == 200)


def test_checkpoints_of_an_owner(box: Box) -> None:
    box.take({"ann": {"checkpoints": 1, "checkpoint_bytes": 4096}}, checkpoints=1)
    session = box.server.session()
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200
    save = {"do": "checkpoint", "name": "a", "arrays": {"x": 1}, "executors": []}
    assert session.run(save).status == 200
    refused = session.run({**save, "name": "b"})
    assert (refused.status, refused.header["type"]) == (507, "StorageError")
    assert refused.error.startswith("checkpoint 'b': expected at most 1 of an owner, got one more: delete one")
    assert session.run({"do": "put", "id": 2, "tensor": "x"}, x=np.ones(4096, np.float32)).status == 200
    refused = session.run({**save, "arrays": {"x": 2}})
    assert (refused.status, "expected at most 4096 bytes" in refused.error) == (507, True)
    wait_for(lambda: 256 < box.used().storage_bytes < 4096)


def test_usage_outlives_a_kill(start: Callable[..., Live], tmp_path: Path) -> None:
    box = Box(start, tmp_path, "process")
    session = box.server.session()
    for _ in range(5):
        assert forward(box.server).status == 200
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200
    wait_for(lambda: box.used().runs >= 6 and box.used().peak_bytes)
    counted = box.used()
    assert counted.requests >= 6
    assert counted.sessions == 1
    assert counted.received_bytes > 6 * X.nbytes
    assert counted.sent_bytes > 5 * X.nbytes
    assert counted.peak_bytes == X.nbytes
    assert counted.worker_seconds > 0
    # It comes to the disk without a stop.
    names = ("requests", "sessions", "runs", "received_bytes", "sent_bytes", "peak_bytes", "worker_seconds")
    wait_for(lambda: all(box.stored().json()[name] >= counted.json()[name] for name in names))
    box.server.process.send_signal(signal.SIGKILL)
    box.server.process.wait(20)
    stored = box.stored().json()
    for name in names:
        assert stored[name] >= counted.json()[name], name


@pytest.mark.parametrize("how", ["a call of its own", "a session"])
def test_what_was_acknowledged_is_counted_though_the_worker_is_killed(
    start: Callable[..., Live], tmp_path: Path, how: str
) -> None:
    box = Box(start, tmp_path, "process")
    if how == "a session":
        put = {"do": "put", "id": 1, "tensor": "x"}
        bind = {"do": "bind", "id": 2, "graph": SLOW, "args": {"x": 1}, "outputs": [3]}
        answer = box.server.session().run(put, bind, {"do": "forward", "executor": 2}, x=X)
    else:
        answer = forward(box.server, graph=SLOW)
    os.kill(box.server.workers()[0], signal.SIGKILL)
    assert answer.status == 200
    wait_for(lambda: box.used().worker_seconds > 1)
    assert box.used().runs == 1


def test_what_a_deadline_ends_is_counted(start: Callable[..., Live], tmp_path: Path) -> None:
    box = Box(start, tmp_path, "none", OPBOX_DEADLINE_S="1")
    nodes = [SLOW["nodes"][0], {**SLOW["nodes"][1], "attrs": {"seconds": "1.2"}}]
    assert forward(box.server, graph={**SLOW, "nodes": nodes}).status == 504
    wait_for(lambda: box.used().worker_seconds > 0.9)
    assert box.used().runs == 1


def test_usage_is_ones_own_and_admins_see_all(box: Box) -> None:
    assert forward(box.server, "ann").status == forward(box.server, "bob").status == 200
    assert box.usage("bob")["owner"] == "bob"
    listed = box.server.json("GET", "/v1/admin/usage", owner="boss").header["owners"]
    assert {"ann", "bob"} <= {row["owner"] for row in listed}
    for owner in ("ann", "monitor"):
        assert box.server.json("GET", "/v1/admin/usage", owner=owner).status == 403
    assert box.server.json("GET", "/v1/usage", owner="monitor").header["owner"] == "monitor"


def test_the_audit_log_says_who_did_what(start: Callable[..., Live], tmp_path: Path) -> None:
    box = Box(start, tmp_path, "process")
    server = box.server
    ann, py, late = server.session("ann"), server.session("py"), server.session("bob", ttl_s=0.5)
    source = {
        "pieces": [{"file": "a.py", "line": 1, "text": "secret = 'of the source'\n"}],
        "exports": [],
        "modules": [],
    }
    define = {"do": "define", "op_type": "mine", "sha256": "0" * 64, "bundle": source}
    assert py.run(define).status in (200, 400)  # whatever becomes of it
    server.call("DELETE", f"/v1/admin/sessions/{ann.id}", owner="boss")
    assert py.delete().status == 200
    with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer not-a-token-1"}) as nobody:
        for _ in range(20):
            assert nobody.get("/v1/ops").status_code == 401
    assert server.call("GET", "/v1/admin/sessions", owner="ann").status == 403
    wait_for(lambda: any(e["action"] == "session.ended" and e["session"] == late.id for e in box.audit()))
    # A worker that dies takes its sessions out of their owners' quotas.
    box.take({"bob": {"sessions": 1}, "ann": {"sessions": 39}}, sessions=39)
    lost = server.session("bob")
    assert server.call("POST", "/v1/sessions", {}, owner="bob").status == 429
    os.kill(server.workers()[0], signal.SIGKILL)
    wait_for(lambda: server.call("POST", "/v1/sessions", {}, owner="bob").status == 201, 180)
    requests = box.used().requests
    box.write({"nobody": {"sessions": 1}})
    wait_for(lambda: forward(server).status == 200 and any(e["action"] == "accounts.refused" for e in box.audit()))
    assert server.stop() == 0
    assert box.stored().requests > requests  # a stop loses nothing

    entries = box.audit()
    by_action: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_action.setdefault(entry["action"], []).append(entry)
    owners = {entry["session"]: entry["owner"] for entry in by_action["session.made"]}
    assert (owners[ann.id], owners[py.id]) == ("ann", "py")
    ended = {entry["session"]: entry for entry in by_action["session.ended"]}
    assert "ended by an administrator" in ended[ann.id]["reason"]
    assert "was deleted" in ended[py.id]["reason"]
    assert "expired" in ended[late.id]["reason"]
    assert "killed by SIGKILL" in ended[lost.id]["reason"]
    (upload,) = by_action["code.uploaded"]
    assert (upload["owner"], upload["session"], upload["command"]) == ("py", py.id, "define")
    assert (upload["name"], upload["sha256"]) == ("mine", "0" * 64)
    (admin,) = by_action["admin"]
    assert (admin["owner"], admin["status"], admin["path"]) == ("boss", 200, f"/v1/admin/sessions/{ann.id}")
    unknown = [entry for entry in by_action["refused"] if entry["status"] == 401]
    assert "repeated" not in unknown[0]
    assert sum(entry.get("repeated", 1) for entry in unknown) == 20  # none is left out
    assert len(unknown) < 20, "alike ones are one line in ten seconds"
    assert [entry["owner"] for entry in by_action["refused"] if entry["status"] == 403] == ["ann"]
    assert "owners.nobody: expected the name of a token" in by_action["accounts.refused"][0]["error"]
    assert [entries[0]["action"], entries[-1]["action"]] == ["server.started", "server.stopped"]
    text = (box.state / "audit.log").read_text()
    assert not any(secret in text for secret in [*TOKENS.values(), "not-a-token-1", "of the source"])
    assert (box.state / "audit.log").stat().st_mode & 0o77 == 0


def test_what_a_used_up_quota_has_refused_can_be_asked_again(box: Box) -> None:
    transport = HttpTransport(box.server.url, TOKENS["ann"])
    session = Session(transport, "cpu")
    zeros_of = {"do": "zeros", "ids": [1], "shape": [3], "dtype": "float32"}
    session.record(zeros_of)
    session.wait()
    assert forward(box.server, graph=SLOW).status == 200
    wait_for(lambda: box.usage()["now"]["worker_seconds"] > 1)
    box.take({"ann": {"worker_seconds": 0.5}}, worker_seconds=0.5)
    for _ in range(3):
        with pytest.raises(QuotaError, match=r"worker seconds: expected at most 0\.5"):
            session.fetch(1).result()
    session.record({**zeros_of, "ids": [2]})
    session.flush()  # nobody waits for it
    wait_for(lambda: session._error is not None)
    box.take({}, worker_seconds=0)
    began = session.requests
    wait_for(lambda: box.server.json("GET", f"/v1/sessions/{session.id}").header["next_seq"] > began)
    with pytest.raises(QuotaError):
        session.wait()  # of the batch that nobody waited for
    np.testing.assert_array_equal(session.fetch(1).result(), np.zeros(3))
    session.wait()
    session.close()
    transport.close()
