"""What a training step does to the device, counted on the pretend one: launches, allocations, what capture refuses.

    make gpu-counts

A step is forward and backward, warm, of LeNet at batch 4, and of ResNet-50 at batch 1 with images of 32 by 32. Counts
depend on these sizes only where an operator works in pieces. The update is one of SGD with momentum over all weights.
Before that come the checks of the operator table that run on the device: of each operator's first row, and of all rows.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import opbox as mx

from .spy import watched
from .test_plans import executor_of

__all__ = ["NETWORKS", "checks", "counts", "update_counts"]

NETWORKS = {"lenet": (4, 1, 28, 28), "resnet50": (1, 3, 32, 32)}


def update_counts(name: str, data: tuple[int, ...]) -> dict[str, int]:
    """Calls by kind of an optimizer's step over a network's weights."""
    symbol = _network(name)
    shapes, _, _ = symbol.infer_shape(data=data, softmax_label=data[:1])
    sizes = [shape for key, shape in zip(symbol.list_arguments(), shapes, strict=True) if key not in _FED]
    weights, grads = ([mx.nd.ones(size, ctx=mx.gpu(0)) for size in sizes] for _ in range(2))
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
    for _ in range(2):
        gc.collect()  # a stream that ends is waited for, which would count
        mx.nd.waitall()
        with watched() as watch:
            updater(list(range(len(sizes))), grads, weights)
            mx.nd.waitall()
    return {"allocations": watch.allocations, **dict(watch.calls)}


_FED = ("data", "softmax_label")


def _network(name: str) -> Any:
    """One of `benchmarks/peer_networks.py`."""
    path = Path(__file__).parents[2] / "benchmarks" / "peer_networks.py"
    spec = importlib.util.spec_from_file_location("peer_networks", path)
    assert spec is not None
    assert spec.loader is not None
    networks: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)
    return mx.sym.load_json(json.dumps(getattr(networks, name)()))


def counts(name: str, data: tuple[int, ...]) -> dict[str, int]:
    """Calls by kind of a network's step, and allocations."""
    symbol = _network(name)
    executor, _, _ = executor_of(lambda: (symbol, {"data": data, "softmax_label": data[:1]}), "gpu:0", "write")

    def step() -> None:
        executor.forward(is_train=True)
        executor.backward()

    for _ in range(2):
        step()
    gc.collect()
    with watched() as watch:
        step()
    return {"allocations": watch.allocations, **dict(watch.calls)}


def checks() -> tuple[int, dict[str, int]]:
    """How many operators the table checks on the GPU, and how many times, by test."""
    table = importlib.reload(importlib.import_module("tests.ops.test_operator_table"))
    operators: set[str] = set()
    numbers: dict[str, int] = {}
    for name, test in vars(table).items():
        for mark in getattr(test, "pytestmark", []):
            if name.startswith("test_") and mark.name == "parametrize" and mark.args[0] == ("device", "case", "dtype"):
                cases = [row.values[1] for row in mark.args[1] if row.values[0] == "gpu"]
                operators |= {case.op for case in cases}
                numbers[name] = len(cases)
    return len(operators), numbers


def main() -> None:
    for rows in ("part", "whole"):
        os.environ["OPBOX_PRETEND_GPU"] = rows
        operators, numbers = checks()
        listed = ", ".join(f"{count} {name.removeprefix('test_')}" for name, count in numbers.items())
        print(f"operator table, {rows}: {operators} operators, {sum(numbers.values())} checks: {listed}", flush=True)
    for name, data in NETWORKS.items():
        for what, counted in (("step", counts(name, data)), ("update", update_counts(name, data))):
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))
            print(f"{name} {data} {what}: {kinds}", flush=True)


if __name__ == "__main__":
    main()
