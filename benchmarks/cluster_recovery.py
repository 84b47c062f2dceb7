"""How long a cluster takes to place sessions, and to go on with a training whose node has died.

    python benchmarks/cluster_recovery.py

Three nodes of Ray on this machine, with the controller, servers and a gateway as `opbox cluster` starts them. 1,000
sessions are opened by the gateway, one after the other, and stay. Then, for each other node than the head's in turn,
a script trains there by `fit(checkpoint_every=5)`, and the node's raylet and all its processes are killed behind a
step. The figures go into benchmarks/results/cluster-recovery.md by hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cluster.ray_cluster import TOKENS, Nodes, call, nodes_in, until

import opbox as mx
from opbox import connection
from opbox.batch_stream import BatchStream
from opbox.http import HttpTransport
from opbox.recovery import Recovery
from opbox.session import Session
from opbox_service.cluster.documents import PlacedSession

SESSIONS = 1000
KILLED_AT, STEPS = 23, 40
MEMORY = 16 << 30
"""What sessions may use of each node, so much that all places are had at once."""
PARTS = (
    ("death noticed by the controller", "noticed"),
    ("first call answered 410", "gone"),
    ("new session", "reopened"),
    ("checkpoint restored", "restored"),
    ("first step done", "step"),
)
"""What the marks of a recovery are called, in their order."""


def place_sessions(nodes: Nodes, gateway: str, pid: int) -> list[str]:
    """Open sessions by the gateway and print what each costs; their ids."""
    processes = {"gateway": psutil.Process(pid), "controller": psutil.Process(nodes.ask("begin"))}
    client = HTTPConnection(urlsplit(gateway).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/json"}
    before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    ids, seconds = [], []
    for _ in range(SESSIONS):
        begin = time.perf_counter()
        client.request("POST", "/v1/sessions", "{}", headers)
        answer = client.getresponse()
        document = json.loads(answer.read())
        seconds.append(time.perf_counter() - begin)
        assert answer.status == 201, document
        ids.append(document["id"])
    client.close()
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    print(f"placement of {SESSIONS} sessions: {sum(seconds):.1f} s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    for name, process in processes.items():
        spent = sum(process.cpu_times()[:2]) - before[name]
        print(f"  processor time of the {name}: {spent / SESSIONS * 1e3:.2f} ms a session")
    by_node = {name: sum(id.startswith(f"{name}-") for id in ids) for name in nodes.ray_nodes}
    print(f"  sessions by node: {by_node}", flush=True)
    return ids


@contextmanager
def marked(marks: dict[str, float]) -> Iterator[None]:
    """Note when the client's recovery reaches its parts."""
    ask, reopen, recover = Session.ask, BatchStream.reopen, Recovery.recover

    def marking(method: Callable[..., Any], begin: str = "", end: str = "") -> Callable[..., Any]:
        def call_and_mark(*arguments: Any, **options: Any) -> Any:
            if begin:
                marks.setdefault(begin, time.perf_counter())
            answer = method(*arguments, **options)
            if end and "gone" in marks:
                marks.setdefault(end, time.perf_counter())
            return answer

        return call_and_mark

    Recovery.recover = marking(recover, begin="gone")  # type: ignore[method-assign]
    BatchStream.reopen = marking(reopen, end="reopened")  # type: ignore[method-assign]
    Session.ask = marking(ask, end="restored")  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.ask, BatchStream.reopen, Recovery.recover = ask, reopen, recover  # type: ignore[method-assign]


def network() -> Any:
    hidden = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=500), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=10), name="softmax")


def recover(nodes: Nodes, gateway: str, victim: str) -> None:
    """Train on a node that dies, and print when what was done."""
    others = [name for name in nodes.ray_nodes if name != victim and nodes.status(name)["state"] == "ready"]
    until(lambda: not sum(nodes.status(name)["sessions"] for name in (*others, victim)), "no session is left")
    for number, name in enumerate(others):  # which have least memory, so that the training begins on the victim
        rest = tuple(other for other in nodes.ray_nodes if other != name)
        place = nodes.place(number, "bob", MEMORY // 2, avoid=rest)
        assert isinstance(place, PlacedSession), place
    marks: dict[str, float] = {}
    killed = 0.0

    def watch(session: str) -> None:
        while isinstance(nodes.ask("where", session), str):
            time.sleep(0.005)
        marks["noticed"] = time.perf_counter()

    def kill() -> None:
        nonlocal killed
        mx.nd.waitall()
        id = mx.cpu().session.id
        until(lambda: nodes.status(victim)["sessions"] == 1, "the session is reported")
        for number, _ in enumerate(others):
            nodes.ask("cancel", f"{number:032x}")
        nodes.kill_node(victim)
        killed = time.perf_counter()
        threading.Thread(target=watch, args=(id,)).start()

    rng = np.random.default_rng(5)
    data = rng.standard_normal((STEPS * 64, 784)).astype(np.float32)
    rows = mx.io.NDArrayIter(data, (data.sum(1) > 0).astype(np.float32), 64)
    steps = 0

    def count(parameters: Any) -> None:
        nonlocal steps
        steps += 1
        mx.nd.waitall()
        if "restored" in marks:
            marks.setdefault("step", time.perf_counter())
        if steps == KILLED_AT:
            kill()

    connection.use(HttpTransport(gateway, TOKENS["ann"]))
    with marked(marks):
        mx.mod.Module(network()).fit(rows, num_epoch=1, checkpoint_every=5, batch_end_callback=count)
    connection.use(None)
    until(lambda: "noticed" in marks, "the controller has noticed")
    print(f"node {victim} killed in a training:")
    for title, mark in PARTS:
        print(f"  {title}: {marks[mark] - killed:.2f} s after the kill", flush=True)


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="oc", dir="/tmp", ignore_cleanup_errors=True) as folder:
        settings = {
            "OPBOX_STORE_URL": f"file://{folder}/store",
            "OPBOX_MAX_DEVICE_BYTES": str(MEMORY),
            "OPBOX_MAX_SESSION_BYTES": str(1 << 30),
            "OPBOX_MAX_SESSIONS": str(2 * SESSIONS),
        }
        for nodes in nodes_in(Path(folder), 3, usual={"sessions": 2.0 * SESSIONS}, **settings):
            with nodes.gateway() as gateway:
                (pid,) = (
                    process.pid
                    for process in psutil.Process().children()
                    if "opbox_service.cluster.gateway" in process.cmdline()
                )
                for id in place_sessions(nodes, gateway, pid):
                    assert call(gateway, "DELETE", f"/v1/sessions/{id}")[0] == 200
                for victim in "bc":
                    recover(nodes, gateway, victim)


if __name__ == "__main__":
    main()
