"""What a training step does to the device, counted on the pretend one: launches, allocations, what capture refuses.

    make gpu-counts

A step is forward and backward, warm, without the update: of LeNet at batch 4, and of ResNet-50 at batch 1 with images
of 32 by 32. Counts depend on these sizes only where an operator works in pieces.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import opbox as mx

from .spy import watched
from .test_plans import executor_of

__all__ = ["NETWORKS", "counts"]

NETWORKS = {"lenet": (4, 1, 28, 28), "resnet50": (1, 3, 32, 32)}


def counts(name: str, data: tuple[int, ...]) -> dict[str, int]:
    """Calls by kind of a step of one of `benchmarks/peer_networks.py`, and allocations."""
    path = Path(__file__).parents[2] / "benchmarks" / "peer_networks.py"
    spec = importlib.util.spec_from_file_location("peer_networks", path)
    assert spec is not None
    assert spec.loader is not None
    networks: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)
    symbol = mx.sym.load_json(json.dumps(getattr(networks, name)()))
    executor, _, _ = executor_of(lambda: (symbol, {"data": data, "softmax_label": data[:1]}), "gpu:0", "write")

    def step() -> None:
        executor.forward(is_train=True)
        executor.backward()

    step()
    with watched() as watch:
        step()
    return {"allocations": watch.allocations, **dict(watch.calls)}


def main() -> None:
    for name, data in NETWORKS.items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts(name, data).items()))
        print(f"{name} {data}: {kinds}", flush=True)


if __name__ == "__main__":
    main()
