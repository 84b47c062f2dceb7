"""What a request costs through the gateway: processor time of client, server and gateway, beside a direct request.

    python benchmarks/cluster.py

A session's call that puts an array and fetches it, of 4 KiB and of 4 MiB: to a single server, straight to a node of a
cluster, through the gateway, and through HAProxy with the configuration that `opbox cluster gateway-config` prints,
where there is one (`make haproxy` unpacks Debian's). All ways take turns in each round, so that the ratios of a round
hold on a busy machine too. The figures go into benchmarks/results/cluster.md by hand.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import psutil

from opbox.http import HttpTransport
from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import NodeInfo
from opbox_service.cluster.gateway.configurations import haproxy_configuration
from opbox_service.cluster.gateway.controllers import LocalControllers

TOKEN = "benchmark-secret-of-22-characters"
ROUNDS = 9
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


def start_haproxy(node: str, folder: Path) -> tuple[subprocess.Popen[str], str] | None:
    """HAProxy before a node, and its URL; None where there is none."""
    unpacked = Path(__file__).resolve().parents[1] / ".haproxy" / "usr"
    program = shutil.which("haproxy") or shutil.which(unpacked / "sbin" / "haproxy")
    if program is None:
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = folder / "haproxy.cfg"
    configuration.write_text(haproxy_configuration({"a": node}, port))
    libraries = ":".join(map(str, (unpacked / "lib").glob("*-linux-gnu")))
    command = [program, "-db", "-f", str(configuration)]
    process = subprocess.Popen(
        command, env={**os.environ, "LD_LIBRARY_PATH": libraries}, stderr=subprocess.DEVNULL, text=True
    )
    return process, f"http://127.0.0.1:{port}"


def seconds_of(pid: int) -> float:
    """Processor time of a process and, for another than this one, of its children: exact, where ticks are of 10 ms."""
    if pid == os.getpid():
        return time.process_time()
    every = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(time.clock_gettime(~one << 3 | 2) for one in every)  # the kernel's clock of a process


def measure(url: str, nbytes: int, pids: list[int]) -> list[float]:
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

    for _ in range(20):
        call()
    before = [seconds_of(pid) for pid in pids]
    for _ in range(CALLS[nbytes]):
        call()
    spent = [seconds_of(pid) - was for pid, was in zip(pids, before, strict=True)]
    transport.call("DELETE", path)
    transport.close()
    return [1e6 * one / CALLS[nbytes] for one in spent]


def measure_all(ways: dict[str, tuple[str, list[int]]], nbytes: int, turn: int) -> dict[str, list[float]]:
    """One round, in an order of its own: who comes after an idle server pays for cold caches."""
    names = list(ways)
    random.Random(turn).shuffle(names)
    return {way: measure(ways[way][0], nbytes, ways[way][1]) for way in names}


def main() -> None:
    """Measure, and print a table."""
    own = os.getpid()
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            single, single_url = start(["opbox_service.serve", "--port", "0"])
            processes.append(single)
            server, url = start(["opbox_service.serve", "--port", "0"], OPBOX_NODE="a")
            processes.append(server)
            command = ["opbox_service.cluster.gateway", "--port", "0", "--controller", "cluster:controllers"]
            gateway, front = start(command, BENCHMARK_NODE=url)
            processes.append(gateway)
            ways = {
                "single server": (single_url, [own, single.pid]),
                "direct": (url, [own, server.pid]),
                "gateway": (front, [own, server.pid, gateway.pid]),
            }
            haproxy = start_haproxy(url, Path(folder))
            if haproxy is not None:
                processes.append(haproxy[0])
                ways["HAProxy"] = (haproxy[1], [own, server.pid, haproxy[0].pid])
            for address, _ in ways.values():
                wait_until_live(address)
            for nbytes in CALLS:
                show(
                    nbytes,
                    [{way: measure(place[0], nbytes, place[1]) for way, place in ways.items()} for _ in range(ROUNDS)],
                )
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def wait_until_live(url: str) -> None:
    """Wait until a server answers at a URL."""
    for _ in range(300):
        try:
            httpx.get(f"{url}/v2/health/live", timeout=30).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{url}: expected an answer, got none")


def show(nbytes: int, rounds: list[dict[str, list[float]]]) -> None:
    """Print the medians of the rounds, and of the ratios in each."""
    for way in sorted(rounds[0], key=["single server", "direct", "gateway", "HAProxy"].index):
        parts = np.median([row[way] for row in rounds], axis=0)
        ratio = np.median([sum(row[way]) / sum(row["direct"]) for row in rounds])
        between = f", between {parts[2]:.0f}" if len(parts) > 2 else ""
        print(
            f"{nbytes:>8} bytes, {way:>13}: {np.median([sum(row[way]) for row in rounds]):.0f} us "
            f"(client {parts[0]:.0f}, server {parts[1]:.0f}{between}): {ratio:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
