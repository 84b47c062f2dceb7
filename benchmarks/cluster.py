"""What a request costs through the gateway: processor time of client, server and gateway, beside a direct request.

    python benchmarks/cluster.py

One server and one gateway process on this machine; a session's call that puts an array and fetches it, of 4 KiB and of
4 MiB. Direct and through the gateway take turns. The figures go into benchmarks/results/cluster.md by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import psutil

from opbox.http import HttpTransport
from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import NodeInfo
from opbox_service.cluster.gateway.controllers import LocalControllers

TOKEN = "benchmark-secret-of-22-characters"
ROUNDS = 7
CALLS = {4 << 10: 400, 4 << 20: 40}


def controllers() -> LocalControllers:
    """The controller of the gateway's process: it knows the node at BENCHMARK_NODE."""
    controller = Controller()
    controller.join(NodeInfo("a", os.environ["BENCHMARK_NODE"], {"cpu": 1 << 34}), time.time())
    return LocalControllers(controller, lambda: 0.0)


def start(command: list[str], **variables: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process; it and the URL that it prints."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    tokens = json.dumps([{"name": "ann", "token": TOKEN, "scopes": ["run"]}])
    env = own | {"OPBOX_TOKENS": tokens, "PYTHONPATH": str(Path(__file__).parent), **variables}
    process = subprocess.Popen([sys.executable, "-m", *command], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def seconds_of(process: psutil.Process) -> float:
    """Processor time of a process and its children."""
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def measure(url: str, nbytes: int, processes: list[psutil.Process]) -> list[float]:
    """Processor time of a call in us, of each process."""
    transport = HttpTransport(url, TOKEN)
    path = f"/v1/sessions/{transport.call('POST', '/v1/sessions', {}).header['id']}"
    values = np.ones(nbytes // 4, np.float32)
    commands = [
        {"do": "put", "id": 1, "tensor": "x"},
        {"do": "fetch", "id": 1, "as": "y"},
        {"do": "free", "ids": [1]},
    ]

    def call() -> None:
        transport.call("POST", f"{path}/commands", {"commands": commands}, {"x": values})

    for _ in range(10):
        call()
    before = [seconds_of(process) for process in processes]
    for _ in range(CALLS[nbytes]):
        call()
    spent = [seconds_of(process) - was for process, was in zip(processes, before, strict=True)]
    transport.call("DELETE", path)
    transport.close()
    return [1e6 * one / CALLS[nbytes] for one in spent]


def main() -> None:
    """Measure, and print a table."""
    server, url = start(["opbox_service.serve", "--port", "0"], OPBOX_NODE="a")
    command = ["opbox_service.cluster.gateway", "--port", "0", "--controller", "cluster:controllers"]
    gateway, front = start(command, BENCHMARK_NODE=url)
    try:
        httpx.get(f"{front}/v2/health/live", timeout=30).raise_for_status()
        processes = [psutil.Process(), psutil.Process(server.pid), psutil.Process(gateway.pid)]
        for nbytes in CALLS:
            rows = [(measure(url, nbytes, processes), measure(front, nbytes, processes)) for _ in range(ROUNDS)]
            direct = np.median([row[0] for row in rows], axis=0)
            through = np.median([row[1] for row in rows], axis=0)
            ratio = np.median([sum(row[1]) / sum(row[0]) for row in rows])
            print(
                f"{nbytes:>8} bytes: direct {direct.sum():.0f} us (client {direct[0]:.0f}, server {direct[1]:.0f}); "
                f"through the gateway {through.sum():.0f} us (client {through[0]:.0f}, server {through[1]:.0f}, "
                f"gateway {through[2]:.0f}): {ratio:.2f}",
                flush=True,
            )
    finally:
        gateway.terminate()
        server.terminate()
        gateway.wait()
        server.wait()


if __name__ == "__main__":
    main()
