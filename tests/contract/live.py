"""A live server in a process of its own, and a client that sees everything of an answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from opbox_protocol import wire

SLOW_OPS = Path(__file__).with_name("slow_ops.py")
SCOPES = {
    "ann": ["run"],
    "bob": ["run"],
    "cuda": ["upload-cuda"],
    "py": ["run", "upload-python"],
    "monitor": ["metrics"],
    "boss": ["admin"],
}
TOKENS = {name: f"{name}-secret-of-22-characters" for name in SCOPES}


@dataclass
class Got:
    """An answer."""

    status: int
    header: dict[str, Any]
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    http: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> str:
        return self.header["error"]


class Live:
    """`opbox serve` with small limits, by this Python or another one."""

    def __init__(
        self,
        isolation: str,
        folder: Path,
        *,
        options: Sequence[str] = ("--port", "0"),
        python: str | None = None,
        before: Sequence[str] = (),
        **settings: str,
    ) -> None:
        """Start it; `before` is a program that starts it, with its options."""
        self.isolation = isolation
        self.folder = folder
        env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
        tokens = [{"name": name, "token": token, "scopes": SCOPES[name]} for name, token in TOKENS.items()]
        env |= {
            "OPBOX_TOKENS": json.dumps(tokens),
            "OPBOX_OPS": json.dumps([str(SLOW_OPS)]),
            "OPBOX_MAX_BODY_BYTES": str(64 << 20),
            "OPBOX_MAX_HEADER_BYTES": str(1 << 20),
            "OPBOX_MAX_NODES": "2000",
            "OPBOX_MAX_RANK": "8",
            "OPBOX_MAX_SESSIONS": "40",
            "OPBOX_MAX_SESSION_BYTES": str(256 << 20),
            "OPBOX_RUNTIME_DIR": str(folder),
            "OPBOX_CODE_SPARES": "0",
            "OPBOX_GPU_SELFCHECK_S": "0",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self.log = (folder / f"log-{isolation}-{os.getpid()}").open("w+")
        self.process = subprocess.Popen(
            [*before, python or sys.executable, "-m", "opbox_service.serve", *options, "--isolation", isolation],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={key: value for key, value in env.items() if value != ""},
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, Path(self.log.name).read_text()
        self.url = first.split()[-1]
        self.announced = self.process.stdout.readline().strip()
        self.clients = {
            name: httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
            for name, token in TOKENS.items()
        }

    def call(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray] | None = None,
        owner: str = "ann",
        **headers: str,
    ) -> Got:
        """A framed call."""
        head, buffers = wire.encode(header or {}, tensors or {}, "inputs")
        sent = {wire.HEADER_LENGTH: str(len(head)), **headers}
        return got(self.clients[owner].request(method, path, content=b"".join([head, *buffers]), headers=sent))

    def json(self, method: str, path: str, body: Any = None, owner: str = "ann") -> Got:
        """A call in plain JSON."""
        return got(self.clients[owner].request(method, path, json=body))

    def raw(self, data: bytes, *, read: bool = True, close: bool = False) -> bytes:
        """Bytes over a socket; what comes back until the server pauses or closes."""
        host, port = self.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(data)
            if close:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return b""
            answer = b""
            while read:
                part = sock.recv(1 << 16)
                answer += part
                head, _, body = answer.partition(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if not part or (length and len(body) >= int(length[0].split(b":")[1])):
                    break
            return answer

    def session(self, owner: str = "ann", **header: Any) -> Session:
        answer = self.call("POST", "/v1/sessions", header, owner=owner)
        assert answer.status == 201, answer.header
        return Session(self, answer.header["id"], owner)

    def metric(self, name: str) -> float:
        """The value of a metric line."""
        for line in self.clients["monitor"].get("/metrics").text.splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        return 0.0

    def workers(self) -> list[int]:
        """The ids of the worker processes that sessions share."""
        return self._children("opbox_service.worker.process")

    def code_workers(self) -> list[int]:
        """Those of the processes that sessions with code have to themselves, and of the spare ones."""
        pids = self._children("opbox_service.worker.code_process")
        for template in self.templates():
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(template).children()
                pids += [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return pids

    def templates(self) -> list[int]:
        """The id of the process that forks those; empty where they are started one by one."""
        return self._children("opbox_service.worker.code_template")

    def _children(self, module: str) -> list[int]:
        pids = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended while they were listed
                if module in child.cmdline():
                    pids.append(child.pid)
        return pids

    def stop(self) -> int:
        for client in self.clients.values():
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.log.close()
        return code


@dataclass
class Session:
    """A session and the number of its next batch."""

    server: Live
    id: str
    owner: str = "ann"
    seq: int = 0

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.id}"

    def run(self, *commands: Mapping[str, Any], wait: bool = True, **tensors: Any) -> Got:
        """The next batch."""
        self.seq += 1
        header = {"seq": self.seq, "commands": list(commands), "wait": wait}
        arrays = {name: np.asarray(value) for name, value in tensors.items()}
        return self.server.call("POST", f"{self.path}/commands", header, arrays, owner=self.owner)

    def delete(self) -> Got:
        return self.server.call("DELETE", self.path, owner=self.owner)


def got(response: httpx.Response) -> Got:
    """An httpx answer, decoded."""
    length = response.headers.get(wire.HEADER_LENGTH)
    tensors = length is not None or response.request.url.path.endswith(("/forward", "/backward", "/commands"))
    frame = wire.decode(response.content, int(length) if length else None, key="outputs" if tensors else "")
    return Got(response.status_code, frame.header, frame.tensors, response.headers)


def symbol(*nodes: tuple[str, str, Mapping[str, str], list[int]], heads: list[int] | None = None) -> dict[str, Any]:
    """Symbol JSON from (op, name, attrs, inputs)."""
    rows = [
        {"op": op, "name": name, "attrs": dict(attrs), "inputs": [[i, 0, 0] for i in inputs]}
        for op, name, attrs, inputs in nodes
    ]
    return {
        "nodes": rows,
        "arg_nodes": [i for i, node in enumerate(rows) if node["op"] == "null"],
        "heads": [[i, 0, 0] for i in (heads if heads is not None else [len(rows) - 1])],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def var(name: str, **attrs: str) -> tuple[str, str, Mapping[str, str], list[int]]:
    return "null", name, attrs, []


FC = symbol(
    var("x"), var("w"), var("b"), ("FullyConnected", "fc", {"num_hidden": "4", "__source__": "train.py:12"}, [0, 1, 2])
)
IDENTITY = symbol(var("x"), ("_copy", "y", {}, [0]))
SLOW = symbol(var("x"), ("_test_slow", "y", {"seconds": "1.5"}, [0]))
BROKEN = symbol(var("x"), ("_test_broken", "y", {}, [0]))
FATAL = symbol(var("x"), ("_test_fatal", "y", {}, [0]))
