"""What a request that is made to hurt costs its sender and everybody else: outcome, seconds, memory, the others' wait.

    python benchmarks/fairness.py                        # all rows
    python benchmarks/fairness.py chain edges            # rows whose name has one of these words
    python benchmarks/fairness.py --base TREE            # beside another tree of this project

A server with its default limits, in worker processes. While "ann" sends each of the requests, "bob" runs a small
forward and a small training step again and again, in a process of his own; the worst of each is printed, in
milliseconds, and the longest that the API process's loop was held up, in milliseconds of its thread's processor time,
which other programs do not change. Memory is that of all the server's processes, shared buffers once: the most
at a time, and what is there at the end. `tests/load` has the requests, `LOADS` here what many requests at a time do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.contract.live import FC, SCOPES, TOKENS, Live, symbol, var  # noqa: E402
from tests.load.attacks import ATTACKS, Attack  # noqa: E402

from opbox_protocol import wire  # noqa: E402

LIMITS = ("BODY_BYTES", "HEADER_BYTES", "NODES", "RANK", "SESSIONS", "SESSION_BYTES")
PAUSE_S = 0.01
PATIENCE_S = 300.0
LOAD_S = 3.0
SAMPLED_S = 0.5
X = {"x": np.ones((8, 16), np.float32), "w": np.ones((4, 16), np.float32), "b": np.zeros(4, np.float32)}
WIDE = symbol(
    var("x"),
    var("w"),
    *(
        ("FullyConnected", f"fc{i}", {"num_hidden": "512", "no_bias": "True"}, [i + 1 if i else 0, 1])
        for i in range(60)
    ),
)
"""60 matrix products of 256 rows, each of some milliseconds."""


def frame(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a post that sends this."""
    head, buffers = wire.encode(header, tensors, "inputs")
    return {"content": b"".join([head, *buffers]), "headers": {wire.HEADER_LENGTH: str(len(head))}}


def bystand(url: str, running: Any, samples: Any) -> None:
    """Another user, whose requests are small; sends how long each took, and what failed."""
    client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKENS['bob']}"}, timeout=PATIENCE_S)
    path = f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['id']}/commands"
    puts = [{"do": "put", "id": i + 1, "tensor": name} for i, name in enumerate(X)]
    grads = [{"do": "put", "id": i + 4, "tensor": name} for i, name in enumerate(X)]
    loss = {**FC, "nodes": [*FC["nodes"], {"op": "MakeLoss", "name": "loss", "attrs": {}, "inputs": [[3, 0, 0]]}]}
    loss["heads"] = [[4, 0, 0]]
    names = list(X)
    bind = {"do": "bind", "id": 7, "graph": loss, "args": {n: i + 1 for i, n in enumerate(names)}, "outputs": [8]}
    bind["grads"] = {n: i + 4 for i, n in enumerate(names)}
    assert client.post(path, **frame({"commands": [*puts, *grads, bind]}, X)).status_code == 200
    step = [
        {"do": "forward", "executor": 7, "is_train": True},
        {"do": "backward", "executor": 7, "head_grads": []},
        {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.1"}, "calls": [{"inputs": [2, 5]}, {"inputs": [3, 6]}]},
        {"do": "fetch", "id": 8, "as": "loss"},
    ]
    calls = {"forward": ("/v1/forward", frame({"graph": FC}, X)), "step": (path, frame({"commands": step}, {}))}
    while True:
        running.wait()
        for kind, (where, body) in calls.items():
            begun = time.perf_counter()
            try:
                failed = client.post(where, **body).status_code != 200
            except httpx.HTTPError:
                failed = True
            samples.put((kind, time.perf_counter() - begun, failed))
        time.sleep(PAUSE_S)


@dataclass
class Wait:
    """What bob saw: his worst forward and training step, in seconds, and how many failed."""

    forward: list[float]
    step: list[float]
    failed: int = 0


class Bystander:
    """bob, who can be asked to run while a block lasts."""

    def __init__(self, url: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._running, self._samples = spawn.Event(), spawn.Queue()
        self._process = spawn.Process(target=bystand, args=(url, self._running, self._samples), daemon=True)
        self._process.start()

    @contextlib.contextmanager
    def runs(self) -> Iterator[Wait]:
        wait = Wait([], [])
        self._running.set()
        time.sleep(0.1)
        yield wait
        self._running.clear()
        time.sleep(2 * PAUSE_S)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with contextlib.suppress(Exception):
                while True:
                    kind, seconds, failed = self._samples.get(timeout=0.2)
                    getattr(wait, kind).append(seconds)
                    wait.failed += failed
            if wait.forward and wait.step:
                break

    def stop(self) -> None:
        self._process.kill()


def flooding(call: Callable[[Live, int], Any], threads: int) -> Attack:
    """`call` again and again from several threads, for a while; the last answer."""

    def attack(server: Live) -> Any:
        end, answers = time.monotonic() + LOAD_S, []

        def run(number: int) -> None:
            while time.monotonic() < end:
                answers.append(call(server, number))

        pool = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
        return answers[-1]

    return attack


def small_forward(server: Live, number: int) -> Any:
    return server.call("POST", "/v1/forward", {"graph": FC}, X)


def session_step(server: Live, number: int) -> Any:
    session = server.session()
    zeros = {"do": "invoke", "op": "_zeros", "attrs": {"shape": [1000]}, "outputs": [1]}
    answer = session.run(zeros, {"do": "fetch", "id": 1, "as": "x"})
    session.delete()
    return answer


def long_plan(server: Live) -> Any:
    tensors = {"x": np.ones((256, 512), np.float32), "w": np.full((512, 512), 1e-3, np.float32)}
    return server.call("POST", "/v1/forward", {"graph": WIDE}, tensors)


LOADS: Mapping[str, Attack] = {
    "a plan of 60 products": long_plan,
    "20 threads of small forwards": flooding(small_forward, 20),
    "20 threads of long plans": flooding(lambda server, number: long_plan(server), 20),
    "20 threads of new sessions": flooding(session_step, 20),
}
"""Many requests at a time, each of them fair."""


class Setting:
    """A server of one tree, and bob."""

    def __init__(self, tree: Path | None, patience: float, alone_s: float = 5) -> None:
        # A path comes before the editable install.
        parts = "" if tree is None else ":".join(str(tree / part) for part in ("client", "ops", "service", "protocol"))
        with tempfile.TemporaryDirectory(prefix="opbox") as folder:
            where = Path(folder)
        where.mkdir()
        tokens = [{"name": name, "token": TOKENS[name], "scopes": SCOPES[name]} for name in ("ann", "bob", "monitor")]
        usual = {f"OPBOX_MAX_{n}": "" for n in LIMITS}
        self.server = Live("process", where, **usual, OPBOX_TOKENS=json.dumps(tokens), OPBOX_OPS="", PYTHONPATH=parts)
        for client in self.server.clients.values():
            client.timeout = patience
        self.bob = Bystander(self.server.url)
        with self.bob.runs() as wait:
            time.sleep(alone_s)
        self.alone = wait

    def memory(self) -> int:
        """Bytes of the server's processes."""
        process = psutil.Process(self.server.process.pid)
        total = 0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_full_info().pss
        return total

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[int]]:
        """The server's memory, again and again while the block lasts."""
        samples, ended = [self.memory()], threading.Event()

        def watch() -> None:
            while not ended.wait(SAMPLED_S):
                samples.append(self.memory())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield samples
        finally:
            ended.set()
            thread.join()

    def row(self, attack: Attack) -> str:
        """What an attack came to."""
        begun = time.perf_counter()
        with self.watched() as samples, self.bob.runs() as wait:
            try:
                answer = str(attack(self.server).status)
            except Exception as error:
                answer = type(error).__name__
            seconds = time.perf_counter() - begun
        growths = [(sample - samples[0]) / 2**20 for sample in (max(samples), self.memory())]
        worst = [max(times, default=float("nan")) * 1e3 for times in (wait.forward, wait.step)]
        lag = self.server.metric('opbox_api_loop_longest_lag_seconds{clock="processor"}') * 1e3
        return (
            f"{answer:>14}{seconds:9.2f}{growths[0]:9.0f}{growths[1]:9.0f}{worst[0]:9.0f}{worst[1]:9.0f}"
            f"{wait.failed:8}{lag:7.0f}"
        )

    def stop(self) -> None:
        self.bob.stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.stop()
        self.server.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the rows' names; all rows by default")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds that ann waits for an answer")
    parser.add_argument("--base", type=Path, help="another tree, measured first")
    options = parser.parse_args()
    trees = {"now": None} if options.base is None else {"before": options.base, "now": None}
    for label, tree in trees.items():
        setting = Setting(tree, options.patience)
        alone = [
            f"{statistics.median(t) * 1e3:.1f}, worst {max(t) * 1e3:.0f}"
            for t in (setting.alone.forward, setting.alone.step)
        ]
        setting.stop()
        print(f"{label}: bob alone, median ms: forward {alone[0]}; training step {alone[1]}")
        columns = (
            f"{'answer':>14}{'seconds':>9}{'peak MB':>9}{'kept MB':>9}{'forward':>9}{'step':>9}{'failed':>8}{'loop':>7}"
        )
        print(f"{'request':40}{columns}")
        for name, attack in {**ATTACKS, **LOADS}.items():
            if options.words and not any(word in name for word in options.words):
                continue
            setting = Setting(tree, options.patience, alone_s=1)  # what the row before left behind is not this one's
            try:
                print(f"{name:40}{setting.row(attack)}", flush=True)
            finally:
                setting.stop()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
