"""What opbox adds to a kernel: a plan's node, an imperative operator embedded and remote, a bind; beside NumPy's call.

    python benchmarks/overhead.py [--nodes 2000] [--calls 2000] [--bind 10000]

The arrays have four elements, so that nearly all of the time is overhead. Each line is the best of a few runs and
prints the ratio to NumPy's own call (`numpy.negative(x, out=y)`) measured beside it. An imperative operator counts the
client's recording, the batch, and running it, over many calls until their last value has come.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

REPEATS = 5


def best(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def numpy_call(count: int) -> float:
    """Microseconds of one call of NumPy's."""
    x, y = np.ones(4, "f"), np.ones(4, "f")

    def run() -> None:
        for _ in range(count):
            np.negative(x, out=y)

    return best(run) / count * 1e6


def plans(nodes: int, bind_nodes: int) -> None:
    """Forward of a chain of nodes, and binding one with its gradient."""
    from opbox_ops import registry
    from opbox_ops.backend import backend_for
    from opbox_ops.node import Entry, Node
    from opbox_service.executor import bind
    from opbox_service.graph import Graph

    cpu = backend_for("cpu")

    def chain(length: int, *names: str) -> Graph:
        entry = Entry(Node(None, "x"))
        for i in range(length):
            op = registry.get(names[i % len(names)])
            attrs = {"scalar": "1.5"} if "scalar" in op.name else {}
            entry = Entry(Node(op, f"n{i}", attrs, op.parse(attrs), (entry,)))
        return Graph([entry])

    for name in ("negative", "_plus_scalar", "tanh"):
        x = np.ones(4, "f")
        executor = bind(chain(nodes, name), args={"x": x}, backend=cpu, random=cpu.random(0))
        peer, ours = numpy_call(nodes), best(executor.forward) / nodes * 1e6
        print(f"{'a node: ' + name:34} {ours:8.2f} us   numpy {peer:5.2f} us   ratio {ours / peer:6.1f}")
    for length in (bind_nodes // 4, bind_nodes // 2, bind_nodes):
        graph = chain(length, "tanh", "negative")
        x, g = np.ones(4, "f"), np.ones(4, "f")
        took = best(lambda: bind(graph, args={"x": x}, grads={"x": g}, backend=cpu, random=cpu.random(0)), 2)  # noqa: B023
        print(f"{f'bind and gradient, {length:,} nodes':34} {took:8.2f} s    {took / length * 1e6:6.1f} us a node")


def imperative(where: str, calls: int) -> None:
    """Operators one by one, embedded or remote, as OPBOX_URL says."""
    import opbox as mx

    x = mx.nd.ones((4,))
    x.wait_to_read()

    def run() -> None:
        y = x
        for _ in range(calls):
            y = mx.nd.negative(y)
        y.wait_to_read()

    run()
    peer, ours = numpy_call(calls), best(run) / calls * 1e6
    print(f"{'an imperative operator, ' + where:34} {ours:8.2f} us   numpy {peer:5.2f} us   ratio {ours / peer:6.1f}")


def remote(calls: int) -> None:
    """The same through a server on this machine."""
    port, token = "8951", "overhead-benchmark"
    environment = {**os.environ, "OPBOX_TOKEN": token}
    server = subprocess.Popen(
        [sys.executable, "-m", "opbox_service.serve", "--port", port, "--isolation", "none"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        environment["OPBOX_URL"] = f"http://127.0.0.1:{port}"
        for _ in range(100):
            time.sleep(0.2)
            done = subprocess.run(
                [sys.executable, __file__, "--remote-part", "--calls", str(calls)], env=environment, check=False
            )
            if done.returncode == 0:
                break
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--bind", type=int, default=10_000)
    parser.add_argument("--remote-part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.remote_part:
        imperative("remote", options.calls)
        return
    plans(options.nodes, options.bind)
    imperative("embedded", options.calls)
    remote(options.calls)


if __name__ == "__main__":
    main()
