"""What opbox adds to a kernel: a plan's node, an imperative operator embedded and remote, a node of a bind.

    python benchmarks/overhead.py [--base PATH] [--rounds 3] [--calls 1000] [--nodes 2000] [--bind 10000]

Beside each figure stands NumPy's own call for the same arrays, and with `--base` the same of another checkout of opbox
(its folders `client`, `ops`, `service`, and `protocol` if it has one), in processes of their own that take turns. The
arrays are small, so that nearly all of the time is overhead.

All times are processor time, the least of several runs. An operator is counted in a chain of `--calls` calls on (4, 4)
arrays that ends in one `asnumpy()`: the client's recording, the batches, and running them, threads included. Remote,
that is the client's process and the server's together, without a worker process (`--isolation none`). A call of a
network is waited for each time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

GOALS = {"a node": 1.5, "a call": 25.0, "embedded": 15.0, "remote": 30.0, "bind": 100.0}
"""Microseconds, by the beginning of a row's name."""
REPEATS = 15
REMOTE_CHAINS = 15
"""Chains of one measurement: the server's processor time is counted in hundredths of a second."""


def least(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of processor time of the cheapest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def numpy_call(call: Callable[[], object], count: int = 2000) -> float:
    """Microseconds of one call of NumPy's, in a loop."""

    def run() -> None:
        for _ in range(count):
            call()

    return least(run) / count * 1e6


def plan(options: argparse.Namespace) -> dict[str, float]:
    """Forward of a chain of nodes, and binding one with its gradient."""
    from opbox_ops import registry
    from opbox_ops.backend import backend_for
    from opbox_ops.node import Entry, Node
    from opbox_service.executor import bind
    from opbox_service.graph import Graph

    cpu = backend_for("cpu")

    def chain(length: int, *names: str) -> Graph:
        """A chain whose calls of one operator share their parameters, as those of a graph that is read from JSON do."""
        calls = []
        for name in names:
            op = registry.get(name)
            attrs = {"scalar": "1.5"} if "scalar" in op.name else {}
            calls.append((op, attrs, op.parse(attrs)))
        entry = Entry(Node(None, "x"))
        for i in range(length):
            op, attrs, params = calls[i % len(calls)]
            entry = Entry(Node(op, f"n{i}", attrs, params, (entry,)))
        return Graph([entry])

    results = {}
    for name in ("negative", "_plus_scalar", "tanh"):
        x = np.ones(4, "f")
        executor = bind(chain(options.nodes, name), args={"x": x}, backend=cpu, random=cpu.random(0))
        results[f"a node: {name}"] = least(executor.forward) / options.nodes * 1e6
    graph = chain(options.bind, "tanh", "negative")
    x, g = np.ones(4, "f"), np.ones(4, "f")
    took = least(lambda: bind(graph, args={"x": x}, grads={"x": g}, backend=cpu, random=cpu.random(0)), 2)
    results[f"bind with gradient: a node of {options.bind:,}"] = took / options.bind * 1e6
    return results


def chains(calls: int) -> dict[str, Callable[[], object]]:
    """Chains of imperative operators, each ending in its last value, run once already."""
    import opbox as mx

    x, y = mx.nd.ones((4, 4)), mx.nd.ones((4, 4))

    def relu() -> None:
        z = x
        for _ in range(calls):
            z = mx.nd.relu(z)
        z.asnumpy()

    def add() -> None:
        z = x
        for _ in range(calls):
            z = z + y
        z.asnumpy()

    def dense() -> None:
        z = x
        for _ in range(calls):
            z = mx.nd.FullyConnected(z, y, num_hidden=4, no_bias=True)
        z.asnumpy()

    named = {"relu(x)": relu, "x + y": add, "FullyConnected(x, y)": dense}
    for run in named.values():
        run()
    return named


def network_calls(calls: int) -> dict[str, Callable[[], object]]:
    """Calls of an executor of two nodes, each waited for, run for long enough that its kernels are there."""
    import opbox as mx

    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc")
    executor = mx.sym.SoftmaxOutput(net, name="softmax").simple_bind(mx.cpu(), data=(2, 4))

    def forward() -> None:
        for _ in range(calls):
            executor.forward()[0].wait_to_read()

    def step() -> None:
        for _ in range(calls):
            executor.forward(is_train=True)
            executor.backward()
            mx.nd.waitall()

    until = time.monotonic() + 1
    while time.monotonic() < until:
        step()
        forward()
    return {"forward": forward, "a training step": step}


def embedded(options: argparse.Namespace) -> dict[str, float]:
    """Operators, and calls of a network, on the engine of this process."""
    os.environ.pop("OPBOX_URL", None)
    named = {f"embedded: {name}": run for name, run in chains(options.calls).items()}
    named |= {f"a call: {name}": run for name, run in network_calls(options.calls).items()}
    return {name: least(run) / options.calls * 1e6 for name, run in named.items()}


def remote(options: argparse.Namespace) -> dict[str, float]:
    """Operators on a server of this machine."""
    os.environ["OPBOX_TOKEN"] = token = "overhead-benchmark"
    server = subprocess.Popen(
        [sys.executable, "-m", "opbox_service.serve", "--port", "0", "--isolation", "none"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        os.environ["OPBOX_URL"] = server.stdout.readline().split()[-1]
        os.environ["OPBOX_TOKEN"] = token
        results = {}
        for name, run in chains(options.calls).items():

            def several(run: Callable[[], object] = run) -> None:
                for _ in range(REMOTE_CHAINS):
                    run()

            times = []
            for _ in range(2):
                before = time.process_time() + _processor_time(server.pid)
                several()
                times.append(time.process_time() + _processor_time(server.pid) - before)
            results[f"remote: {name}"] = min(times) / REMOTE_CHAINS / options.calls * 1e6
        return results
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def _processor_time(pid: int) -> float:
    """Seconds that a process has taken, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peers() -> dict[str, float]:
    """NumPy's own calls, by the beginning of a row's name."""
    x, y = np.ones((4, 4), "f"), np.ones((4, 4), "f")
    flat, out = np.ones(4, "f"), np.empty(4, "f")
    zero = np.float32(0)
    return {
        "a node: negative": numpy_call(lambda: np.negative(flat, out=out)),
        "a node: _plus_scalar": numpy_call(lambda: np.add(flat, zero, out=out)),
        "a node: tanh": numpy_call(lambda: np.tanh(flat, out=out)),
        "relu(x)": numpy_call(lambda: np.maximum(x, zero)),
        "x + y": numpy_call(lambda: np.add(x, y)),
        "FullyConnected(x, y)": numpy_call(lambda: np.dot(x, y.T)),
    }


PARTS = {"plan": plan, "embedded": embedded, "remote": remote}


def measure(tree: Path | None, part: str, options: argparse.Namespace) -> dict[str, float]:
    """A part's figures, by a process of its own on the code of `tree`; None: as installed."""
    environment = dict(os.environ)
    environment.pop("OPBOX_URL", None)
    environment.setdefault("OPBOX_LOG_LEVEL", "error")
    if tree is not None:
        folders = [tree / name for name in ("protocol", "client", "ops", "service")]
        environment["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in folders if folder.is_dir())
    sizes = [f"--{name}={getattr(options, name)}" for name in ("calls", "nodes", "bind")]
    command = [sys.executable, __file__, "--part", part, *sizes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{part} of {tree or 'this tree'} failed:\n{done.stderr}")
    results: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--base", type=Path, help="another checkout of opbox to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each part and tree, in turns")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--bind", type=int, default=10_000)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options)))
        return
    trees = [None] if options.base is None else [None, options.base.resolve()]
    best: dict[tuple[Path | None, str], float] = {}
    numpy_best: dict[str, float] = {}
    for _ in range(options.rounds):
        for part in PARTS:
            for tree in trees:
                for name, us in measure(tree, part, options).items():
                    best[tree, name] = min(us, best.get((tree, name), us))
        for name, us in peers().items():
            numpy_best[name] = min(us, numpy_best.get(name, us))
    print(f"{'us of processor time':38} {'opbox':>8} {'goal':>6} {'NumPy':>7} {'ratio':>6}", end="")
    print("" if options.base is None else f" {'base':>8} {'ratio':>6}")
    for (tree, name), us in best.items():
        if tree is not None:
            continue
        goal = next(value for start, value in GOALS.items() if name.startswith(start))
        peer = next((value for key, value in numpy_best.items() if name.endswith(key)), None)
        beside = f"{'':7} {'':6}" if peer is None else f"{peer:7.2f} {us / peer:6.1f}"
        base = best.get((trees[-1], name)) if len(trees) > 1 else None
        print(f"{name:38} {us:8.2f} {goal:6.1f} {beside}" + ("" if base is None else f" {base:8.2f} {us / base:6.2f}"))


if __name__ == "__main__":
    main()
