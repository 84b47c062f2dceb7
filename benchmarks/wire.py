"""What a tensor's trip costs: an identity graph through /v1/forward, beside a bare uvicorn echo that joins its body.

    python benchmarks/wire.py [--seconds 2] [--sizes 4096 262144 4194304 67108864] [--base ../base]

Three servers run at a time, each on its own port: the echo, opbox in one process, opbox with a worker process. One
raw-socket client calls them in turns, so that a busy machine is as bad for all. Printed: the median round trip, and
its ratio to the echo's. Beside the ratios the goal: at 4 MiB and more, not slower than the echo.

With `--base` (the root of another tree, such as a worktree of an older commit) this tree's servers run beside that
one's instead, and printed is what a request costs in processor time of the server and its worker, the least of some
rounds: what else the machine does counts for less in it than in a round trip. Linux alone counts it finely enough.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from opbox_protocol import wire

ECHO = """
import asyncio, socket, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = b"".join(parts)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
sock = socket.socket()
sock.bind(("127.0.0.1", 0))
sock.listen()
print(f"echo serving on http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
print("token: none", flush=True)
config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="error")
uvicorn.Server(config).run(sockets=[sock])
"""
GRAPH = {
    "nodes": [
        {"op": "null", "name": "x", "inputs": []},
        {"op": "_copy", "name": "y", "inputs": [[0, 0, 0]]},
    ],
    "arg_nodes": [0],
    "heads": [[1, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}


ROUNDS = 8


class Peer:
    """A server in a process of its own and one connection to it."""

    def __init__(self, name: str, command: list[str], tree: Path | None = None) -> None:
        self.name = name
        env = dict(os.environ)
        if tree is not None:
            env["PYTHONPATH"] = os.pathsep.join(str(tree / part) for part in ("protocol", "ops", "client", "service"))
        self._process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=env)
        assert self._process.stdout is not None
        url = self._process.stdout.readline().split()[-1]
        self._token = self._process.stdout.readline().split()[-1]
        host, port = url.removeprefix("http://").split(":")
        self._sock = socket.create_connection((host, int(port)))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, head: bytes, body: memoryview) -> bytes:
        """The bytes of a request in front of its tensors."""
        return (
            f"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
            f"{wire.HEADER_LENGTH}: {len(head)}\r\nContent-Length: {len(head) + len(body)}\r\n\r\n"
        ).encode() + head

    def round_trip(self, request: bytes, body: memoryview, into: memoryview) -> tuple[bytes, int]:
        """Send, and read the answer into `into`; its HTTP header, and how many bytes its body had."""
        if len(body) <= 1 << 16:
            self._sock.sendall(request + body)
        else:
            self._sock.sendall(request)
            self._sock.sendall(body)
        got = self._sock.recv_into(into)
        while (end := bytes(into[: min(got, 4096)]).find(b"\r\n\r\n")) < 0:
            got += self._sock.recv_into(into[got:])
        header = bytes(into[:end])
        lengths = [line for line in header.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1])
        while got < end + 4 + length:
            got += self._sock.recv_into(into[got:])
        return header, length

    def check(self, header: bytes, into: memoryview, length: int, x: np.ndarray) -> None:
        """That the answer is the tensor that was sent."""
        if self.name == "echo":
            return
        body = into[len(header) + 4 : len(header) + 4 + length]
        if b" 200 " not in header.split(b"\r\n")[0]:
            raise SystemExit(f"{self.name}: {bytes(body[:500])!r}")
        fields = dict(line.split(b": ", 1) for line in header.lower().split(b"\r\n")[1:])
        frame = wire.decode(body, int(fields[wire.HEADER_LENGTH.lower().encode()]), key="outputs")
        assert np.array_equal(frame.tensors["y_output"], x)

    def processor_seconds(self) -> float:
        """What its processes have worked so far."""
        server = psutil.Process(self._process.pid)
        tasks = [
            task for process in (server, *server.children()) for task in Path(f"/proc/{process.pid}/task").iterdir()
        ]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> None:
        self._sock.close()
        self._process.terminate()
        self._process.wait()


def ready(peers: list[Peer], nbytes: int) -> dict[str, Callable[[], tuple[bytes, int]]]:
    """What sends a tensor of so many bytes to each peer and reads the answer, by its name; tried, and found right."""
    x = np.random.default_rng(0).random(nbytes // 4, dtype=np.float32)
    head, buffers = wire.encode({"graph": GRAPH}, {"x": x}, "inputs")
    body = buffers[0]
    into = memoryview(bytearray(nbytes + (1 << 16)))
    trips = {}
    for peer in peers:
        trips[peer.name] = partial(peer.round_trip, peer.request(head, body), body, into)
        for _ in range(5):
            header, length = trips[peer.name]()
        peer.check(header, into, length, x)
    return trips


def measure(peers: list[Peer], nbytes: int, seconds: float) -> dict[str, float]:
    """The median round trip by peer, in seconds."""
    trips = ready(peers, nbytes)
    times: dict[str, list[float]] = {name: [] for name in trips}
    until = time.perf_counter() + seconds * len(peers)
    while time.perf_counter() < until or len(times[peers[0].name]) < 10:
        for name, trip in trips.items():
            for _ in range(20 if nbytes <= 1 << 18 else 1):
                begun = time.perf_counter()
                trip()
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(taken) for name, taken in times.items()}


def cost(peers: list[Peer], nbytes: int, seconds: float) -> dict[str, float]:
    """The processor time of a request by peer, in seconds: the least of ROUNDS rounds, in which they take turns."""
    trips = ready(peers, nbytes)
    least = dict.fromkeys(trips, float("inf"))
    for _ in range(ROUNDS):
        for peer in peers:
            before, count, until = peer.processor_seconds(), 0, time.perf_counter() + seconds / ROUNDS
            while time.perf_counter() < until or count < 5:
                trips[peer.name]()
                count += 1
            least[peer.name] = min(least[peer.name], (peer.processor_seconds() - before) / count)
    return least


def compare(base: Path, sizes: list[int], seconds: float) -> None:
    """Print what requests cost in two trees."""
    print(f"{'bytes':>10}  {'isolation':9}  {'base':>10} {'this tree':>10} {'ratio':>6}   (processor ms a request)")
    for isolation in ("none", "process"):
        serve = ["-m", "opbox_service.serve", "--port", "0", "--isolation", isolation]
        peers = [Peer("base", serve, base), Peer("now", serve, Path(__file__).resolve().parent.parent)]
        try:
            for nbytes in sizes:
                took = cost(peers, nbytes, seconds)
                cells = f"{took['base'] * 1e3:10.3f} {took['now'] * 1e3:10.3f} {took['now'] / took['base']:6.2f}"
                print(f"{nbytes:>10}  {isolation:9}  {cells}", flush=True)
        finally:
            for peer in peers:
                peer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each server and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4 << 10, 256 << 10, 4 << 20, 64 << 20])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--base", type=Path, help="the root of another tree, to compare with this one")
    options = parser.parse_args()
    os.environ.setdefault("OPBOX_LOG_LEVEL", "error")
    if options.base is not None:
        compare(options.base.resolve(), options.sizes, options.seconds)
        return
    serve = ["-m", "opbox_service.serve", "--port", "0", "--isolation"]
    peers = [
        Peer("echo", ["-c", ECHO]),
        Peer("none", [*serve, "none"]),
        Peer("process", [*serve, "process"]),
    ]
    by_size = {}
    try:
        if not options.json:
            print(f"{'bytes':>10}  {'echo, joined':>14}  {'isolation none':>22}  {'isolation process':>22}   (p50)")
        for nbytes in options.sizes:
            seconds = by_size[nbytes] = measure(peers, nbytes, options.seconds)
            if not options.json:
                cells = "  ".join(
                    f"{seconds[n] * 1e3:10.3f} ms {seconds[n] / seconds['echo']:6.2f} x" for n in ("none", "process")
                )
                print(f"{nbytes:>10}  {seconds['echo'] * 1e3:11.3f} ms  {cells}", flush=True)
    finally:
        for peer in peers:
            peer.stop()
    if options.json:
        print(json.dumps(by_size))


if __name__ == "__main__":
    main()
