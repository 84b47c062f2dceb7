"""Binding a graph of many nodes, embedded: all that a user waits for, from `simple_bind` until it is done.

    python benchmarks/bind.py [--nodes 10000] [--growth] [--rounds 3] [--base TREE]

Two networks: `chain`, elementwise operators one behind the other; and `residual`, blocks x = (x + relu(fc(x))) * 0.5,
a weight and a bias each, so that a third of the nodes are arguments. Each is bound for inference and with gradients;
the first run is timed too, so that nothing is hidden in it. `--growth` binds 2,500, 5,000, 10,000 and 20,000 nodes, and
prints by what factor twice the nodes take longer. `--base` is the root of another checkout: both take turns within one
run, and the ratio is printed. Seconds are processor time of the process, the least of some rounds: other programs on
the machine count little. `loop` is a loop of Python's own measured beside them, so that runs can be compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SIZES = (2_500, 5_000, 10_000, 20_000)
WIDTH = 8


def chain(mx, nodes):
    """A variable, and elementwise operators."""
    net = mx.sym.Variable("data")
    kinds = (mx.sym.tanh, mx.sym.negative, lambda x: x * 1.5, lambda x: x + 1.0)
    for i in range(nodes - 1):
        net = kinds[i % len(kinds)](net)
    return net


def residual(mx, nodes):
    """Blocks of six nodes: a product with its weight and bias, an activation, a sum, and a scaling."""
    net = mx.sym.Variable("data")
    for i in range(nodes // 6):
        branch = mx.sym.FullyConnected(net, num_hidden=WIDTH, name=f"fc{i}")
        branch = mx.sym.Activation(branch, act_type="relu", name=f"relu{i}")
        net = (net + branch) * 0.5
    return net


NETWORKS = {"chain": chain, "residual": residual}


def bind(mx, network, nodes, gradients):
    """Processor seconds of a bind, and of the first run."""
    net = NETWORKS[network](mx, nodes)
    mx.nd.waitall()  # the network before this one is let go of
    start = time.process_time()
    executor = net.simple_bind(mx.cpu(), grad_req="write" if gradients else "null", data=(4, WIDTH))
    mx.nd.waitall()
    bound = time.process_time()
    executor.forward(is_train=gradients)
    if gradients:
        executor.backward(mx.nd.ones((4, WIDTH)))
    mx.nd.waitall()
    return bound - start, time.process_time() - bound


def loop():
    """Processor seconds of two million turns of a loop."""
    start = time.process_time()
    total = 0
    for i in range(2_000_000):
        total += i & 7
    return time.process_time() - start


def work():
    """The process that binds: a line comes in for each bind, its seconds go out."""
    import opbox as mx

    bind(mx, "residual", 60, True)
    print("ready", flush=True)
    for line in sys.stdin:
        network, nodes, gradients = line.split()
        print(*bind(mx, network, int(nodes), gradients == "True"), loop(), flush=True)


class Tree:
    """A process of a checkout.

    Args:
        root: the checkout; None for the one that is installed.
    """

    def __init__(self, root):
        parts = ("protocol", "client", "ops", "service")
        path = {} if root is None else {"PYTHONPATH": os.pathsep.join(str(root / part) for part in parts)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env={**os.environ, **path, "OPBOX_URL": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, *what):
        print(*what, file=self.process.stdin, flush=True)
        return [float(seconds) for seconds in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--growth", action="store_true", help="bind graphs of several sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", type=Path, help="another checkout to compare with")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    trees = [Tree(None)] + ([Tree(options.base)] if options.base else [])
    print(
        f"{'':33}{'bind s':>8} {'us a node':>10} {'first run s':>12} {'loop s':>8}"
        + "   base s   ratio" * len(trees[1:])
    )
    for network in NETWORKS:
        for gradients in (False, True):
            before = None
            for nodes in SIZES if options.growth else (options.nodes,):
                rounds = [[tree.ask(network, nodes, gradients) for tree in trees] for _ in range(options.rounds)]
                (took, first, turns), *base = [
                    [min(column) for column in zip(*readings, strict=True)] for readings in zip(*rounds, strict=True)
                ]
                name = f"{network}, {nodes:,} nodes" + (", gradients" if gradients else "")
                line = f"{name:33}{took:8.2f} {took / nodes * 1e6:10.1f} {first:12.3f} {turns:8.3f}"
                line += "".join(f" {seconds[0]:8.2f} {took / seconds[0]:7.2f}" for seconds in base)
                print(line + (f"   {took / before:.2f} times for twice the nodes" if before else ""), flush=True)
                before = took
    for tree in trees:
        tree.close()


if __name__ == "__main__":
    main()
