"""Networks on the CPU beside MXNet 1.9.1 and PyTorch, alternating in one run with the same threads.

    make bench-peers                                     # the peers' environments, and this
    python benchmarks/cpu_vs_peers.py --threads 2 --rounds 5 --only resnet

Forward is inference; forward and backward is a training step without the update. Medians in ms over all rounds, and
opbox's time over the faster of the two peers, PyTorch being taken with channels first or last, whichever is faster.
On a machine that does other work, medians tell how much of it met a process; `--quantile 0.1` prints the time that a
tenth of the runs stayed within, of many rounds, and so compares the processes in their undisturbed moments.
Each process runs a network for `--warm` seconds before the rounds: what it compiles or chooses at its first runs is
there by then.
`--dtype` runs all in bfloat16 or float16, beside PyTorch alone: MXNet's CPU refuses those types.
`--more` compares networks with other kinds of layers; `--http` adds opbox through a server of its own, worker process
and all. MXNet is found in .venv-mxnet, PyTorch in
.venv-torch, or where OPBOX_ORACLE_PYTHON and OPBOX_TORCH_PYTHON say; without one its columns stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "examples"))

import more_networks  # noqa: E402
import peer_networks as networks  # noqa: E402
from lenet_demo import server  # noqa: E402


def task(
    network: str, batch: int, data: tuple[int, ...], runs: int, steps: int = 0, **shapes: tuple[int, ...]
) -> dict[str, Any]:
    """What peers are asked; data is (batch, *data), or (steps, batch, *data)."""
    of = more_networks if hasattr(more_networks, network) else networks
    symbol = networks.lstm(49) if network == "lstm" else getattr(of, network)()
    return {
        "name": f"{network} b{batch}",
        "network": network,
        "symbol": symbol,
        "shapes": {"data": (steps, batch, *data) if steps else (batch, *data), **shapes},
        "runs": runs,
    }


TASKS = [
    task("mlp", 128, (784,), 400),
    task("lenet", 100, (1, 28, 28), 30),
    task("resnet50", 1, (3, 224, 224), 2),
    task("resnet50", 8, (3, 224, 224), 1),
    task("vgg16", 1, (3, 224, 224), 1),
    task("lstm", 32, (49, 128), 15, h=(32, 256), c=(32, 256)),
]
MORE = [
    task("mobilenet", 1, (3, 224, 224), 4),
    task("mobilenet", 8, (3, 224, 224), 1),
    task("squeezenet", 1, (3, 224, 224), 4),
    task("densenet121", 1, (3, 224, 224), 1),
    task("dcgan", 16, (100, 1, 1), 2),
    task("transformer", 8, (128, 512), 1),
    task("lstm_layers", 32, (200,), 4, 35, h=(2, 32, 256), c=(2, 32, 256)),
    task("gru_layers", 32, (200,), 4, 35, h=(2, 32, 256)),
]
GOALS = {
    "mlp b128": (0.8, 0.8),
    "lenet b100": (0.7, 0.7),
    "resnet50 b1": (0.5, 0.7),
    "resnet50 b8": (0.7, 0.7),
    "vgg16 b1": (0.7, 0.7),
    "lstm b32": (1.0, 1.0),
}

REST_S = 0.1
"""Between two processes' turns: threads of the one before, which look for work for milliseconds, sleep by then."""


class Peer:
    """A process that answers tasks with seconds."""

    def __init__(self, python: str, script: str, *arguments: str, threads: int, **environment: str) -> None:
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self.process = subprocess.Popen(
            [python, str(HERE / "peers" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **counts, **environment},
        )

    def ask(self, question: dict[str, Any]) -> list[list[float]]:
        """Seconds of each run of forward, and of forward with backward."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer: list[list[float]] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def started(threads: int, http: bool, dtype: str) -> Iterator[dict[str, Peer]]:
    """The peers that this machine has and that take the type, by name."""
    peers = {"opbox": Peer(sys.executable, "symbols.py", "opbox", threads=threads, OPBOX_URL="")}
    mxnet = os.environ.get("OPBOX_ORACLE_PYTHON", ".venv-mxnet/bin/python")
    torch = os.environ.get("OPBOX_TORCH_PYTHON", ".venv-torch/bin/python")
    if Path(mxnet).exists() and dtype == "float32":
        peers["MXNet"] = Peer(mxnet, "symbols.py", "mxnet", threads=threads)
    if Path(torch).exists():
        peers["PyTorch"] = Peer(torch, "modules.py", threads=threads)
        peers["PyTorch, last"] = Peer(torch, "modules.py", "last", threads=threads)
    try:
        if not http:
            yield peers
            return
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
        with server() as (url, token):
            peers["HTTP"] = Peer(
                sys.executable, "symbols.py", "opbox", threads=threads, OPBOX_URL=url, OPBOX_TOKEN=token
            )
            yield peers
    finally:
        for peer in peers.values():
            peer.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantile", type=float, default=0.5, help="of the runs' times: 0.5 is the median")
    parser.add_argument("--warm", type=float, default=3.0, help="seconds of each process before the rounds")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--more", action="store_true", help="the networks of more_networks.py, not those with a goal")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--http", action="store_true", help="ResNet-50 through a server too")
    options = parser.parse_args()
    with started(options.threads, options.http, options.dtype) as peers:
        names = list(peers)
        kind = "medians" if options.quantile == 0.5 else f"quantile {options.quantile}"
        print(f"{options.threads} threads; forward / forward and backward, ms, {kind} of {options.rounds} rounds")
        print(
            f"{options.dtype:18}"
            + "".join(f"{name:>22}" for name in names)
            + f"{'over the faster peer':>24}{'goal':>14}"
        )
        for question in MORE if options.more else TASKS:
            if options.only in question["name"]:
                question["dtype"] = options.dtype
                compare(question, peers, options.rounds, options.warm, options.quantile)


def compare(question: dict[str, Any], peers: dict[str, Peer], rounds: int, warm_s: float, quantile: float) -> None:
    """Print a line of the table."""
    name = question["name"]
    taking = {peer: process for peer, process in peers.items() if peer != "HTTP" or "resnet" in name}
    for process in taking.values():
        until = time.monotonic() + warm_s
        while time.monotonic() < until:
            process.ask(question)
    seconds: dict[str, list[list[float]]] = {peer: [[], []] for peer in taking}
    for _ in range(rounds):
        for peer, process in taking.items():
            time.sleep(REST_S)
            for kind, times in enumerate(process.ask(question)):
                seconds[peer][kind] += times
    typical = {peer: [float(numpy.quantile(times, quantile)) for times in both] for peer, both in seconds.items()}
    line = f"{name:18}"
    for peer in peers:
        both = typical.get(peer)
        line += f"{'' if both is None else f'{both[0] * 1e3:.2f} / {both[1] * 1e3:.2f}':>22}"
    others = [both for peer, both in typical.items() if peer not in ("opbox", "HTTP")]
    if others:
        ratios = [typical["opbox"][kind] / min(both[kind] for both in others) for kind in (0, 1)]
        line += f"{f'{ratios[0]:.2f} / {ratios[1]:.2f}':>24}"
    goal = GOALS.get(name, ()) if question["dtype"] == "float32" else ()
    print(line + f"{' / '.join(map(str, goal)):>14}", flush=True)


if __name__ == "__main__":
    main()
