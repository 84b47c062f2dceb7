"""What a request that is made to hurt costs its sender and everybody else: outcome, seconds, memory, the others' wait.

    python benchmarks/fairness.py                        # all rows
    python benchmarks/fairness.py chain edges            # rows whose name has one of these words

A server with its default limits, in worker processes. While "ann" sends each of the requests, "bob" runs a small
forward again and again; his median without ann, and his worst with her, are printed. `tests/load` has the requests.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.contract.live import FC, Live
from tests.load.attacks import ATTACKS

LIMITS = ("BODY_BYTES", "HEADER_BYTES", "NODES", "RANK", "SESSIONS", "SESSION_BYTES")
PAUSE_S = 0.01
PATIENCE_S = 300.0
X = {"x": np.ones((8, 16), np.float32), "w": np.ones((4, 16), np.float32), "b": np.zeros(4, np.float32)}


class Bystander:
    """Another user, whose requests are small: how long each takes."""

    def __init__(self, server: Live) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.failed = 0

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            begun = time.perf_counter()
            try:
                self.failed += self._server.call("POST", "/v1/forward", {"graph": FC}, X, owner="bob").status != 200
            except Exception:
                self.failed += 1
            self.seconds.append(time.perf_counter() - begun)


def resident(server: Live) -> int:
    """Bytes of the server's processes."""
    process = psutil.Process(server.process.pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def main() -> None:
    words = sys.argv[1:]
    server = Live("process", Path(tempfile.mkdtemp()), **{f"OPBOX_MAX_{name}": "" for name in LIMITS})
    for client in server.clients.values():
        client.timeout = PATIENCE_S
    try:
        with Bystander(server) as quiet:
            time.sleep(1)
        print(
            f"bob alone: median {statistics.median(quiet.seconds) * 1e3:.1f} ms, worst {max(quiet.seconds) * 1e3:.0f}"
        )
        print(f"{'request':36}{'answer':>8}{'seconds':>9}{'kept MB':>9}{'bob, worst ms':>15}{'bob failed':>12}")
        for name, attack in ATTACKS.items():
            if words and not any(word in name for word in words):
                continue
            before, begun = resident(server), time.perf_counter()
            with Bystander(server) as bob:
                try:
                    status = str(attack(server).status)
                except Exception as error:
                    status = type(error).__name__[:8]
                seconds = time.perf_counter() - begun
            growth = (resident(server) - before) / 2**20
            worst = max(bob.seconds, default=0.0) * 1e3
            print(f"{name:36}{status:>8}{seconds:9.2f}{growth:9.0f}{worst:15.0f}{bob.failed:12}", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
