"""What the memory planner saves: ResNet-50 (bottleneck v2), VGG-16 and an unrolled LSTM, beside MXNet's own allocation.

    python benchmarks/memory_plan.py [--batch 8]

Counted as naive: every intermediate value, head gradients included, with memory of its own; arguments, gradient arrays,
auxiliary states and executor outputs are outside on both sides. Temporaries (an im2col buffer) are in neither figure of
the ratio; the column "with temps" is the arena that is really allocated, which they share. MXNet's figure is the
"Total … MB allocated" of `Executor.debug_str()`, its planned pool: outputs are in it, convolution workspace is not.
MXNet is found by OPBOX_ORACLE_PYTHON, or in .venv-mxnet (make conformance); without it its column stays empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from peer_networks import lstm, resnet50, vgg16

from opbox_service.executor import compile_plan
from opbox_service.graph.json import load

MB = 1 << 20
GOALS = {"inference": 1 / 3, "training": 0.6}

ORACLE = """
import json, re, sys, warnings
warnings.simplefilter("ignore")
import mxnet as mx
symbol, shape, train = mx.sym.load_json(sys.stdin.readline()), *json.loads(sys.stdin.readline())
shapes = {name: tuple(dims) for name, dims in shape.items()}
req = {n: "write" if train and n not in shapes and n != "softmax_label" else "null" for n in symbol.list_arguments()}
executor = symbol.simple_bind(mx.cpu(), grad_req=req, **shapes)
print(re.search(r"Total (\\d+) MB allocated", executor.debug_str()).group(1))
"""


def oracle_python() -> str | None:
    """MXNet's interpreter, where there is one."""
    here = Path(__file__).resolve().parent.parent / ".venv-mxnet" / "bin" / "python"
    return os.environ.get("OPBOX_ORACLE_PYTHON") or (str(here) if here.exists() else None)


def mxnet_bytes(document: dict[str, Any], shapes: dict[str, tuple[int, ...]], train: bool) -> int | None:
    """MXNet's planned pool for the same graph, to the megabyte."""
    python = oracle_python()
    if python is None:
        return None
    request = f"{json.dumps(document)}\n{json.dumps([shapes, train])}\n"
    # No subgraph fusion: the same graph is planned on both sides.
    env = {**os.environ, "MXNET_SUBGRAPH_BACKEND": "NONE"}
    done = subprocess.run([python, "-c", ORACLE], input=request, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"MXNet failed: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout.split()[-1]) * MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    batch = parser.parse_args().batch
    models: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
        ("ResNet-50", resnet50(), {"data": (batch, 3, 224, 224)}),
        ("VGG-16", vgg16(), {"data": (batch, 3, 224, 224)}),
        ("LSTM-35", lstm(), {"data": (batch, 35, 256), "h": (batch, 256), "c": (batch, 256)}),
    ]
    print(f"batch {batch}, MB")
    columns = (("naive", 9), ("arena", 9), ("ratio", 8), ("live", 9), ("with temps", 12), ("outputs", 9), ("MXNet", 8))
    print(" " * 22 + "".join(f"{title:>{width}}" for title, width in (*columns, ("plan s", 8))))
    missed = []
    for name, document, shapes in models:
        for kind, goal in GOALS.items():
            graph = load(document)
            train = kind == "training"
            wanted = [n for n in graph.argument_names if n not in shapes and n != "softmax_label"]
            begin = time.perf_counter()
            plan = compile_plan(graph, shapes, {"data": "float32"}, dict.fromkeys(wanted, "write") if train else {})
            seconds = time.perf_counter() - begin
            assert plan.memory is not None
            bare = plan.place(temps=False)
            peer = mxnet_bytes(document, shapes, train)
            ratio = bare.arena_bytes / bare.naive_bytes
            print(
                f"{name + ' ' + kind:22}{bare.naive_bytes / MB:9.1f}{bare.arena_bytes / MB:9.1f}{ratio:8.3f}"
                f"{bare.live_bytes / MB:9.1f}{plan.arena_bytes / MB:12.1f}{plan.output_bytes / MB:9.1f}"
                f"{'' if peer is None else f'{peer / MB:.0f}':>8}{seconds:8.2f}"
            )
            if name == "ResNet-50" and ratio > goal:
                missed.append(f"{name} {kind}: {ratio:.3f} is more than {goal:.3f}")
    if missed:
        raise SystemExit("; ".join(missed))


if __name__ == "__main__":
    main()
