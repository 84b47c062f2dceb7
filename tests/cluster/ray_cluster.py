"""Ray nodes on this machine, with opbox's controller on the first and a server on each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

import opbox as mx

TOKENS = {name: f"{name}-secret-of-22-characters" for name in ("ann", "bob")}
PATIENCE_S = 150.0
"""Longer than any wait lasts on a busy machine: it ends tests that would hang."""
SETTINGS = {
    "OPBOX_HOST": "127.0.0.1",
    "OPBOX_PORT": "0",
    "OPBOX_CODE_SPARES": "0",
    "OPBOX_GPU_SELFCHECK_S": "0",
    "OPBOX_MAX_DEVICE_BYTES": str(64 << 20),
    "OPBOX_MAX_SESSION_BYTES": str(32 << 20),
    "OMP_NUM_THREADS": "1",
}
_RAY_TOKENS: dict[str, str] = {}
"""One token for all clusters of a process: Ray reads it once."""
USUAL = {"sessions": 12.0}
"""What owners without terms of their own have over all nodes."""


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait until something holds; its value."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = holds()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {PATIENCE_S:g} s")


def call(url: str, method: str, path: str, body: Any = None, owner: str = "ann") -> tuple[int, dict[str, Any]]:
    """A call in JSON: status and answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {TOKENS[owner]}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(url + path, data, headers, method=method), timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


def opened(url: str, owner: str = "ann") -> dict[str, Any]:
    """A session on a node where nobody has placed one: the owner's share there comes once it has been refused."""

    def tried() -> dict[str, Any] | None:
        status, session = call(url, "POST", "/v1/sessions", {}, owner)
        assert status in (201, 429), session
        return session if status == 201 else None

    return dict(until(tried, "the session is opened"))


def save_model(folder: Path) -> None:
    """A model that two nodes are to serve; it adds up three numbers, twice."""
    folder.mkdir(parents=True)
    network = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
    network.save(str(folder / "net-symbol.json"))
    mx.nd.save(str(folder / "net-0001.params"), {"arg:fc_weight": mx.nd.ones((2, 3))})
    (folder / "model.toml").write_text('replicas = 2\n[inputs.data]\nshape = [1, 3]\ndatatype = "FP32"\n')


class Nodes:
    """A cluster of `count` nodes, whose servers serve.

    Args:
        folder: of all files; Ray's sockets need a short path.
        count: number of nodes, the head included.
        usual: see USUAL.
        settings: further variables of the servers, and others in place of SETTINGS'.
    """

    def __init__(self, folder: Path, count: int, usual: Mapping[str, float] = USUAL, **settings: str) -> None:
        places = {"OPBOX_RUNTIME_DIR": str(folder / "run"), "OPBOX_MODELS": str(folder / "models")}
        os.environ.update({**SETTINGS, **places, **settings})
        from opbox_service.cluster.machine_record import new_ray_token
        from opbox_service.cluster.ray_start import MARK, OBJECT_STORE_BYTES, ray_environment
        from opbox_service.cluster.ray_start import SETTINGS as RAY_SETTINGS

        token = _RAY_TOKENS.setdefault("of this process", new_ray_token())
        os.environ.update(ray_environment(token), RAY_TMPDIR=str(folder))
        from ray.cluster_utils import Cluster

        self.folder = folder
        save_model(folder / "models" / "net")
        self.tokens_file = folder / "owners.json"
        rows = [{"name": name, "token": token, "scopes": ["run", "upload-python"]} for name, token in TOKENS.items()]
        self.tokens_file.write_text(json.dumps({"tokens": rows}))
        common = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES, "resources": {MARK: 1}}
        head = {"include_dashboard": False, "_system_config": RAY_SETTINGS, "node_name": "a/1"}
        self.cluster = Cluster(initialize_head=True, head_node_args=common | head)
        self.ray_nodes = {"a": self.cluster.head_node}
        for letter in "bcdefg"[: count - 1]:
            self.ray_nodes[letter] = self.cluster.add_node(wait=False, node_name=f"{letter}/1", **common)
        import ray

        from opbox_service.cluster.controller_options import ControllerOptions
        from opbox_service.cluster.machine import begin_controller
        from opbox_service.cluster.ray_start import connect

        connect(self.cluster.address)
        until(lambda: len([row for row in ray.nodes() if row["Alive"]]) == count, "Ray's nodes are alive")
        begin_controller(ControllerOptions(str(folder), str(self.tokens_file), usual), self.ray_nodes["a"].node_id)
        for name in self.ray_nodes:
            self.until_state(name, "ready")

    def ask(self, method: str, *arguments: object) -> Any:
        """Call the controller, also while it is started again."""
        from opbox_protocol.errors import NotReadyError
        from opbox_service.cluster.machine import call_controller

        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call_controller(method, *arguments)
            except NotReadyError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def status(self, name: str) -> dict[str, Any]:
        """What the controller says of a node."""
        rows = [row for row in self.ask("status")["nodes"] if row["node"] == name]
        return rows[0] if rows else {"state": "unknown", "url": "", "sessions": 0}

    def until_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait for a node's state; its row."""
        row = until(lambda: (row := self.status(name))["state"] == state and row, f"node {name} is {state}")
        return dict(row)

    def place(self, number: int, owner: str = "ann", nbytes: int = 0, **terms: Any) -> Any:
        """Ask for a place."""
        from opbox_service.cluster.documents import SessionWish

        return self.ask("place", SessionWish(f"{number:032x}", owner, bytes=nbytes, **terms))

    def placed(self, number: int, owner: str = "ann") -> Any:
        """A place, once there is one: figures of sessions that have ended come with the next reports."""
        return until(lambda: hasattr(place := self.place(number, owner, 1 << 20), "url") and place, "it has a place")

    def kill_node(self, name: str) -> None:
        """Kill a node as a power cut does: the raylet, and all processes that it started."""
        raylet = psutil.Process(self.ray_nodes[name].all_processes["raylet"][0].process.pid)
        processes = [raylet, *raylet.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @contextlib.contextmanager
    def gateway(self) -> Iterator[str]:
        """A gateway's process; its URL."""
        command = [sys.executable, "-m", "opbox_service.cluster.gateway"]
        variables = {"RAY_ADDRESS": self.cluster.address, "OPBOX_TOKENS_FILE": str(self.tokens_file)}
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()

    def close(self) -> None:
        """End everything."""
        import ray

        with contextlib.suppress(Exception):
            self.ask("stop")
        ray.shutdown()
        self.cluster.shutdown()


def nodes_in(folder: Path, count: int, **further: Any) -> Iterator[Nodes]:
    """A cluster for tests, with the environment as it was afterwards; `further` as of Nodes."""
    before = dict(os.environ)
    nodes = None
    try:
        nodes = Nodes(folder, count, **further)
        yield nodes
    finally:
        if nodes is not None:
            nodes.close()
        os.environ.clear()
        os.environ.update(before)
