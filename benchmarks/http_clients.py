"""What the client's own connections cost beside httpx's and urllib3: one tensor there and one back, over loopback.

    python benchmarks/http_clients.py [--seconds 1] [--sizes 4096 262144 4194304 67108864]

A server in a process of its own answers each request with a tensor of the same size, and does no more than that. The
clients call it in turns, each with the wire codec and the best that its interface offers: the tensor's own memory as
body, the answer in one buffer that the array is a view of. Printed: the median call, and its ratio to that of
HttpTransport by connections of its own; "client" is HttpTransport by an httpx.Client, as `mx.connect(url, http=…)`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import urllib3

from opbox.http import HttpTransport
from opbox_protocol import wire

SERVER = """
import socket, threading
import numpy as np
from opbox_protocol import wire

answers = {}

def answer(nbytes):
    if nbytes not in answers:
        head, buffers = wire.encode({}, {"y": np.zeros(nbytes // 4, np.float32)}, "outputs")
        fields = {wire.HEADER_LENGTH: len(head), "Content-Length": wire.frame_size(head, buffers)}
        lines = ["HTTP/1.1 200 OK", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
        start = "\\r\\n".join(lines).encode() + head
        answers[nbytes] = start, buffers[0]
    return answers[nbytes]

def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    into = memoryview(bytearray(1 << 20))
    while True:
        got = sock.recv_into(into)
        if not got:
            return
        while (end := bytes(into[:min(got, 8192)]).find(b"\\r\\n\\r\\n")) < 0:
            got += sock.recv_into(into[got:])
        fields = dict(line.lower().split(b": ", 1) for line in bytes(into[:end]).split(b"\\r\\n")[1:])
        length, header = int(fields[b"content-length"]), int(fields[wire.HEADER_LENGTH.lower().encode()])
        left = length - (got - end - 4)
        while left:
            left -= sock.recv_into(into[: min(left, len(into))])
        start, tensor = answer(length - header)
        if len(tensor) <= 1 << 16:
            sock.sendall(start + bytes(tensor))
        else:
            sock.sendall(start)
            sock.sendall(tensor)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""
PATH = "/v1/forward"
Call = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def own(port: int) -> Call:
    """The client's own connections."""
    transport = HttpTransport(f"http://127.0.0.1:{port}", "t")
    return lambda x: transport.call("POST", PATH, {}, {"x": x}).tensors["y"]


def by_client(port: int) -> Call:
    """The client, with an httpx client that a program brings."""
    transport = HttpTransport(f"http://127.0.0.1:{port}", "t", http=httpx.Client(trust_env=False))
    return lambda x: transport.call("POST", PATH, {}, {"x": x}).tensors["y"]


def _request(x: np.ndarray[Any, Any]) -> tuple[dict[str, str], list[Any]]:
    head, buffers = wire.encode({}, {"x": x}, "inputs")
    headers = {
        "Authorization": "Bearer t",
        "Content-Type": "application/octet-stream",
        wire.HEADER_LENGTH: str(len(head)),
        "Content-Length": str(wire.frame_size(head, buffers)),
    }
    return headers, [head, *buffers]


def by_urllib3(port: int) -> Call:
    """A connection pool; a small body in one piece, a large one from the tensor's memory."""
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port)

    def call(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        headers, chunks = _request(x)
        body = b"".join(chunks) if x.nbytes <= 1 << 16 else iter(chunks)
        response = pool.urlopen("POST", PATH, body=body, headers=headers)
        return wire.decode(response.data, int(response.headers[wire.HEADER_LENGTH]), key="outputs").tensors["y"]

    return call


def by_httpx(port: int) -> Call:
    """A client; large bodies in slices of 256 KiB, for httpcore copies what is left after every write."""
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)

    def sliced(chunks: list[Any]) -> Any:
        for chunk in chunks:
            for at in range(0, len(chunk), 1 << 18):
                yield chunk[at : at + (1 << 18)]

    def call(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        headers, chunks = _request(x)
        body = b"".join(chunks) if x.nbytes <= 1 << 16 else sliced(chunks)
        with client.stream("POST", PATH, content=body, headers=headers) as response:
            buffer = np.empty(int(response.headers["content-length"]), np.uint8)
            at = 0
            for part in response.iter_raw():
                buffer[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
        return wire.decode(buffer, int(response.headers[wire.HEADER_LENGTH]), key="outputs").tensors["y"]

    return call


def measure(calls: dict[str, Call], nbytes: int, seconds: float) -> dict[str, float]:
    """The median call by client, in seconds."""
    x = np.random.default_rng(0).random(nbytes // 4, dtype=np.float32)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            assert call(x).shape == x.shape
    until = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < until or len(times["own"]) < 5:
        for name, call in calls.items():
            for _ in range(20 if nbytes <= 1 << 18 else 1):
                begun = time.perf_counter()
                call(x)
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each client and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4 << 10, 256 << 10, 4 << 20, 64 << 20])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        calls = {"own": own(port), "client": by_client(port), "urllib3": by_urllib3(port), "httpx": by_httpx(port)}
        medians = {}
        if not options.json:
            print(f"{'bytes':>10}  {'HttpTransport':>14}  {'client':>22}  {'urllib3':>22}  {'httpx':>22}   (p50)")
        for nbytes in options.sizes:
            this = medians[nbytes] = measure(calls, nbytes, options.seconds)
            if not options.json:
                others = "  ".join(
                    f"{this[n] * 1e3:10.3f} ms {this[n] / this['own']:6.2f} x" for n in ("client", "urllib3", "httpx")
                )
                print(f"{nbytes:>10}  {this['own'] * 1e3:11.3f} ms  {others}", flush=True)
        if options.json:
            print(json.dumps(medians))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
