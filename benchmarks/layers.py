"""Single layers in float32 on the CPU, forward and forward with backward, beside MXNet 1.9.1: least time of some runs.

    python benchmarks/layers.py [--only Convolution]

Both run the same one-operator symbol through their executors, layer after layer in turn. A ratio below 1 means that
opbox takes less time. MXNet is found by OPBOX_ORACLE_PYTHON, or in .venv-mxnet (make conformance); without it its
columns stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape

RUNS = 20


def _conv(data: tuple[int, ...], filters: int, kernel: int, pad: int = 0, stride: int = 1) -> tuple[Any, ...]:
    attrs = {"kernel": (kernel, kernel), "pad": (pad, pad), "stride": (stride, stride), "num_filter": filters}
    return "Convolution", data, attrs


LAYERS: list[tuple[Any, ...]] = [
    _conv((100, 1, 28, 28), 20, 5),
    _conv((100, 20, 12, 12), 50, 5),
    _conv((1, 64, 56, 56), 64, 3, 1),
    _conv((1, 256, 14, 14), 256, 3, 1),
    _conv((8, 64, 56, 56), 64, 3, 1),
    _conv((8, 64, 56, 56), 256, 1),
    _conv((8, 512, 7, 7), 2048, 1),
    _conv((1, 3, 224, 224), 64, 7, 3, 2),
    ("Pooling", (100, 20, 24, 24), {"kernel": (2, 2), "stride": (2, 2)}),
    ("Pooling", (8, 64, 112, 112), {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}),
    ("Pooling", (8, 64, 28, 28), {"kernel": (3, 3), "pad": (1, 1), "pool_type": "avg"}),
    ("Pooling", (8, 2048, 7, 7), {"global_pool": True, "pool_type": "avg"}),
    ("BatchNorm", (8, 256, 56, 56), {"fix_gamma": False}),
    ("BatchNorm", (8, 512, 7, 7), {"fix_gamma": False}),
    ("Activation", (100, 20, 24, 24), {"act_type": "relu"}),
    ("Activation", (100, 20, 24, 24), {"act_type": "tanh"}),
    ("Dropout", (128, 4096), {}),
    ("softmax", (128, 1000), {}),
    ("SoftmaxOutput", (128, 1000), {}),
    ("FullyConnected", (100, 800), {"num_hidden": 500}),
]

ORACLE = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import mxnet as mx
for line in sys.stdin:
    document, shape, runs = json.loads(line)
    symbol = mx.sym.load_json(json.dumps(document))
    executor = symbol.simple_bind(mx.cpu(), data=tuple(shape))
    for array in executor.arg_dict.values():
        array[:] = mx.nd.random.normal(shape=array.shape)
    head = [mx.nd.ones(out.shape) for out in executor.outputs]
    seconds = []
    for backward in (False, True):
        best = 1e9
        for run in range(runs + 3):
            start = time.perf_counter()
            executor.forward(is_train=True)
            if backward:
                executor.backward(head)
            mx.nd.waitall()
            best = min(best, time.perf_counter() - start) if run >= 3 else best
        seconds.append(best)
    print(json.dumps(seconds), flush=True)
"""


def symbol(op: str, attrs: dict[str, Any]) -> dict[str, Any]:
    """MXNet symbol JSON of one call."""
    definition = registry.get(op)
    names = definition.input_names(definition.parse(attrs))
    nodes: list[dict[str, Any]] = [{"op": "null", "name": name, "inputs": []} for name in names]
    aux = definition.aux_indices(definition.parse(attrs))
    inputs = [[i, 0, int(i in aux)] for i in range(len(names))]
    nodes.append({"op": op, "name": "layer", "attrs": {k: str(v) for k, v in attrs.items()}, "inputs": inputs})
    return {
        "nodes": nodes,
        "arg_nodes": list(range(len(names))),
        "node_row_ptr": list(range(len(nodes) + 1)),
        "heads": [[len(names), 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def ours(document: dict[str, Any], shape: tuple[int, ...]) -> tuple[float, float]:
    """Seconds of forward, and of forward with backward."""
    graph, backend = load(document), backend_for("cpu")
    shapes = infer_shape(graph, {"data": shape})
    rng = np.random.default_rng(0)
    args = {
        name: backend.put(rng.normal(size=shape).astype(np.float32))
        for name, shape in zip(graph.argument_names, shapes.arg_shapes, strict=True)
    }
    aux = {
        name: backend.put(np.ones(shape, np.float32))
        for name, shape in zip(graph.auxiliary_names, shapes.aux_shapes, strict=True)
    }
    grads = {name: backend.put(np.zeros_like(array)) for name, array in args.items() if name != "label"}
    executor = bind(graph, args=args, grads=grads, aux=aux, backend=backend, random=backend.random(0))
    heads = [np.ones_like(out) for out in executor.outputs]
    seconds = []
    for backward in (False, True):
        best = 1e9
        for run in range(RUNS + 3):
            start = time.perf_counter()
            executor.forward(is_train=True)
            if backward:
                executor.backward(heads)
            best = min(best, time.perf_counter() - start) if run >= 3 else best
        seconds.append(best)
    return seconds[0], seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    only = parser.parse_args().only
    python = os.environ.get("OPBOX_ORACLE_PYTHON", ".venv-mxnet/bin/python")
    peer = None
    if Path(python).exists():
        peer = subprocess.Popen(
            [python, "-c", ORACLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    print(f"{'layer':62}{'opbox ms: fwd':>15}{'+bwd':>8}{'MXNet ms: fwd':>15}{'+bwd':>8}{'ratio: fwd':>12}{'+bwd':>7}")
    for op, shape, attrs in LAYERS:
        if only not in op:
            continue
        document = symbol(op, attrs)
        forward, both = ours(document, shape)
        line = f"{f'{op} {shape} ' + ' '.join(f'{k}={v}' for k, v in attrs.items()):.61}"
        line = f"{line:62}{forward * 1e3:15.2f}{both * 1e3:8.2f}"
        if peer is not None and peer.stdin is not None and peer.stdout is not None:
            peer.stdin.write(json.dumps([document, shape, RUNS]) + "\n")
            peer.stdin.flush()
            theirs = json.loads(peer.stdout.readline())
            line += f"{theirs[0] * 1e3:15.2f}{theirs[1] * 1e3:8.2f}{forward / theirs[0]:12.2f}{both / theirs[1]:7.2f}"
        print(line, flush=True)
    if peer is not None:
        peer.communicate()


if __name__ == "__main__":
    main()
