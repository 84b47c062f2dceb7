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


class Builder:
    """MXNet symbol JSON, put together node by node."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def variable(self, name: str) -> int:
        self.nodes.append({"op": "null", "name": name, "inputs": []})
        return len(self.nodes) - 1

    def call(
        self, op: str, name: str, *inputs: int | tuple[int, int], params: str = "", aux: str = "", **attrs: Any
    ) -> int:
        """A call on `inputs`, then on fresh variables for the names in `params` and `aux`."""
        sources = [[i, 0, 0] if isinstance(i, int) else [*i, 0] for i in inputs]
        sources += [[self.variable(f"{name}_{param}"), 0, 0] for param in params.split()]
        sources += [[self.variable(f"{name}_{state}"), 0, 1] for state in aux.split()]
        texts = {key: str(value) for key, value in attrs.items()}
        self.nodes.append({"op": op, "name": name, "attrs": texts, "inputs": sources})
        return len(self.nodes) - 1

    def batch_norm(self, name: str, data: int) -> int:
        return self.call(
            "BatchNorm", name, data, params="gamma beta", aux="moving_mean moving_var", fix_gamma=False, eps=2e-5
        )

    def convolution(self, name: str, data: int, filters: int, kernel: int, stride: int = 1, bias: bool = False) -> int:
        pad = kernel // 2
        return self.call(
            "Convolution",
            name,
            data,
            params="weight bias" if bias else "weight",
            num_filter=filters,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            pad=(pad, pad),
            no_bias=not bias,
        )

    def relu(self, name: str, data: int) -> int:
        return self.call("Activation", name, data, act_type="relu")

    def dense(self, name: str, data: int, hidden: int) -> int:
        return self.call("FullyConnected", name, data, params="weight bias", num_hidden=hidden)

    def finish(self, head: int) -> dict[str, Any]:
        last = self.call("SoftmaxOutput", "softmax", head, params="label")
        return {
            "nodes": self.nodes,
            "arg_nodes": [i for i, node in enumerate(self.nodes) if node["op"] == "null"],
            "node_row_ptr": [],
            "heads": [[last, 0, 0]],
            "attrs": {"mxnet_version": ["int", 10901]},
        }


def resnet50() -> dict[str, Any]:
    """He et al., Identity Mappings in Deep Residual Networks, 2016: units of BN-ReLU-convolution, 1x1, 3x3, 1x1."""
    b = Builder()
    x = b.convolution("conv0", b.variable("data"), 64, 7, 2)
    x = b.relu("relu0", b.batch_norm("bn0", x))
    x = b.call("Pooling", "pool0", x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, (units, filters) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        for unit in range(units):
            name, stride = f"stage{stage}_unit{unit}", 2 if stage and not unit else 1
            y = first = b.relu(f"{name}_relu1", b.batch_norm(f"{name}_bn1", x))
            y = b.convolution(f"{name}_conv1", y, filters // 4, 1)
            y = b.relu(f"{name}_relu2", b.batch_norm(f"{name}_bn2", y))
            y = b.convolution(f"{name}_conv2", y, filters // 4, 3, stride)
            y = b.relu(f"{name}_relu3", b.batch_norm(f"{name}_bn3", y))
            y = b.convolution(f"{name}_conv3", y, filters, 1)
            shortcut = x if unit else b.convolution(f"{name}_sc", first, filters, 1, stride)
            x = b.call("elemwise_add", f"{name}_plus", y, shortcut)
    x = b.relu("relu1", b.batch_norm("bn1", x))
    x = b.call("Pooling", "pool1", x, kernel=(7, 7), pool_type="avg", global_pool=True)
    return b.finish(b.dense("fc1", b.call("Flatten", "flat", x), 1000))


def vgg16() -> dict[str, Any]:
    """Simonyan and Zisserman, 2014, configuration D, without dropout."""
    b = Builder()
    x = b.variable("data")
    for block, (layers, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for layer in range(layers):
            x = b.relu(f"relu{block}_{layer}", b.convolution(f"conv{block}_{layer}", x, filters, 3, bias=True))
        x = b.call("Pooling", f"pool{block}", x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = b.call("Flatten", "flat", x)
    for i in (6, 7):
        x = b.relu(f"relu{i}", b.dense(f"fc{i}", x, 4096))
    return b.finish(b.dense("fc8", x, 1000))


def lstm(steps: int = 35, hidden: int = 256) -> dict[str, Any]:
    """One LSTM layer unrolled over `steps`, its last state classified; weights shared by all steps."""
    b = Builder()
    data = b.call("SliceChannel", "steps", b.variable("data"), num_outputs=steps, axis=1, squeeze_axis=1)
    shared = {name: b.variable(name) for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}
    h, c = b.variable("h"), b.variable("c")
    for t in range(steps):
        i2h = b.call(
            "FullyConnected", f"i2h{t}", (data, t), shared["i2h_weight"], shared["i2h_bias"], num_hidden=4 * hidden
        )
        h2h = b.call("FullyConnected", f"h2h{t}", h, shared["h2h_weight"], shared["h2h_bias"], num_hidden=4 * hidden)
        gates = b.call("SliceChannel", f"gates{t}", b.call("elemwise_add", f"sum{t}", i2h, h2h), num_outputs=4, axis=1)
        kinds = ("sigmoid", "sigmoid", "tanh", "sigmoid")
        i, f, g, o = (b.call("Activation", f"gate{t}_{k}", (gates, k), act_type=a) for k, a in enumerate(kinds))
        c = b.call(
            "elemwise_add", f"c{t}", b.call("elemwise_mul", f"keep{t}", f, c), b.call("elemwise_mul", f"new{t}", i, g)
        )
        h = b.call("elemwise_mul", f"h{t}", o, b.call("Activation", f"squash{t}", c, act_type="tanh"))
    return b.finish(b.dense("out", h, 1000))


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
