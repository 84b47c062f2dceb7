"""Data-parallel training: the processor time of an image with two workers, beside that of one.

python benchmarks/data_parallel.py [--network lenet|resnet50] [--steps 60] [--warm 5] [--batch 64] [--workers 2]
    [--runs 3]

Each worker has a batch of its own, with an engine in its own process or on the server of OPBOX_URL; there the server's
processor time counts too, where it runs on this machine (--server PID). Every process computes with one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MXNET_UPDATE_ON_KVSTORE", "1")

import numpy as np
import psutil

import opbox as mx
from opbox import dist
from opbox_service.commands import groups

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from networks import resnet


def lenet() -> tuple[Any, tuple[int, ...]]:
    net = mx.sym.Variable("data")
    for number, filters in enumerate((20, 50), 1):
        net = mx.sym.Convolution(net, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        net = mx.sym.Pooling(mx.sym.Activation(net, act_type="tanh"), pool_type="max", kernel=(2, 2), stride=(2, 2))
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=500, name="fc1")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="tanh"), num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax"), (1, 28, 28)


def resnet50() -> tuple[Any, tuple[int, ...]]:
    return resnet.build(mx), (3, 224, 224)


NETWORKS: dict[str, Callable[[], tuple[Any, tuple[int, ...]]]] = {"lenet": lenet, "resnet50": resnet50}


def processor_s(server: int | None) -> float:
    """Processor seconds of this process, and of a server with its workers."""
    processes = [psutil.Process()]
    if server is not None and dist_rank() == 0:
        root = psutil.Process(server)
        processes += [root, *root.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def dist_rank() -> int:
    return dist.group().rank if os.environ.get("OPBOX_DIST") else 0


def train(
    network: str, steps: int, warm: int, batch: int, server: int | None, behind: bool = False
) -> tuple[float, float]:
    """A worker's processor seconds and seconds for the steps after the first ones."""
    if behind:
        groups.MIN_BEGUN_BYTES = 1 << 62  # every sum begins when backward has ended
    kv = mx.kv.create("dist_sync")
    net, shape = NETWORKS[network]()
    mod = mx.mod.Module(net)
    mod.bind([("data", (batch, *shape))], [("softmax_label", (batch,))])
    mx.random.seed(0)
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(kv, "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    rng = np.random.RandomState(kv.rank)
    data = mx.io.DataBatch([mx.nd.array(rng.rand(batch, *shape))], [mx.nd.array(rng.randint(0, 10, batch).astype("f"))])

    def run(count: int) -> None:
        for _ in range(count):
            mod.forward_backward(data)
            mod.update()
            mod._flush()
        mod.get_outputs()[0].wait_to_read()

    run(warm)
    kv.barrier()
    begun, begun_s = time.perf_counter(), processor_s(server)
    run(steps)
    spent_s = processor_s(server) - begun_s
    kv.barrier()
    return spent_s, time.perf_counter() - begun


def compare_overlap(settings: tuple[Any, ...], workers: int, runs: int) -> None:
    """Print seconds a step, and processor seconds of all workers, with sums that overlap backward and behind it."""
    steps, ratios = settings[1], []
    for run in range(runs):
        took = {}
        for behind in (False, True) if run % 2 else (True, False):
            rows = dist.launch(train, (*settings, behind), workers=workers)
            took[behind] = max(row[1] for row in rows) / steps
            spent = sum(row[0] for row in rows) / steps
            name = "behind" if behind else "overlapped"
            print(f"{name}: {took[behind]:.3f} s a step, {spent:.3f} s of processor time", flush=True)
        ratios.append(took[False] / took[True])
    print(f"{settings[0]}: overlapped / behind: {statistics.median(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default="lenet")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm", type=int, default=5, help="steps before those that count")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--server", type=int, help="process id of the server of OPBOX_URL")
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="compare seconds a step with those where sums begin when backward has ended",
    )
    options = parser.parse_args()
    settings = (options.network, options.steps, options.warm, options.batch, options.server)
    if options.overlap:
        compare_overlap(settings, options.workers, options.runs)
        return
    rates: dict[int, list[float]] = {1: [], options.workers: []}
    for _ in range(options.runs):
        for count in rates:  # in turn, as other programs load the machine
            rows = dist.launch(train, settings, workers=count)
            images = count * options.steps * options.batch
            rates[count].append(1e6 * sum(spent for spent, _ in rows) / images)
            print(
                f"{count} workers: {rates[count][-1]:.1f} us of processor time an image, "
                f"{images / max(took for _, took in rows):.0f} images/s",
                flush=True,
            )
    one, many = (statistics.median(rates[count]) for count in (1, options.workers))
    print(
        f"{options.network}, batch {options.batch} a worker: {one:.1f} and {many:.1f} us, efficiency {one / many:.2f}"
    )


if __name__ == "__main__":
    main()
