"""Operators on a GPU at the sizes that networks have, beside PyTorch and beside the time that their bytes take.

    python benchmarks/gpu_operators.py [--only REGEX] [--seconds 60] [--json FILE]

Forward is a training call; both is that and its gradients. Each is called until 20 ms have passed on the device, and
the time of a call is their mean, in ms. `floor` is the time in which the device copies the call's inputs and outputs:
no call whose time is its bytes runs faster. PyTorch is timed in this process, eager, if this Python has it; above 1 in
the last column, opbox is the faster. `--device cpu` tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.ops.one_call import call_graph

from opbox_ops.backend import backend_for
from opbox_ops.cudnn import search
from opbox_service.executor import bind

BUSY_S = 0.02
"""Calls are repeated for this long: the device's clock is up, and one call's start counts for nothing."""
LONGEST = 200
"""Calls at most, where one takes microseconds."""


@dataclass(frozen=True)
class Input:
    """An input: its shape, what it is drawn from, and whether its gradient is asked for."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    whole: bool = False
    grad: bool = True


def whole(shape: tuple[int, ...], high: int) -> Input:
    """Return an input of whole numbers from 0 to below `high`, without a gradient."""
    return Input(shape, 0, high, whole=True, grad=False)


@dataclass(frozen=True)
class Call:
    """One call: its operator, inputs, attributes, and PyTorch's function of the same inputs."""

    op: str
    inputs: dict[str, Input | tuple[int, ...]]
    attrs: dict[str, Any]
    torch: str = ""
    dtype: str = "float32"
    note: str = ""

    @property
    def name(self) -> str:
        """The operator, its first input's shape and its attributes."""
        shape = "x".join(str(size) for size in next(iter(self.drawn().values())).shape)
        attrs = " ".join(f"{key}={value}" for key, value in self.attrs.items() if key != "num_filter")
        return " ".join(filter(None, [self.op, shape, attrs, "" if self.dtype == "float32" else self.dtype, self.note]))

    def drawn(self) -> dict[str, Input]:
        """Each input, where only a shape stands too."""
        return {k: v if isinstance(v, Input) else Input(v) for k, v in self.inputs.items()}


MANY = {"data": (1 << 26,)}


def norm(shape: tuple[int, ...], axis: int = 1) -> dict[str, Any]:
    """Return BatchNorm's inputs."""
    states = {
        "moving_mean": Input((shape[axis],), grad=False),
        "moving_var": Input((shape[axis],), 0.5, 1.5, grad=False),
    }
    return {"data": shape, "gamma": (shape[axis],), "beta": (shape[axis],), **states}


def convolution(data: tuple[int, ...], filters: int, kernel: int, groups: int = 1) -> dict[str, Any]:
    """Return Convolution's inputs."""
    return {"data": data, "weight": (filters, data[1] // groups, kernel, kernel), "bias": (filters,)}


def window(filters: int, kernel: int, stride: int = 1, groups: int = 1) -> dict[str, Any]:
    """Return Convolution's attributes."""
    return {
        "num_filter": filters,
        "kernel": (kernel, kernel),
        "stride": (stride, stride),
        "pad": (kernel // 2, kernel // 2),
        "num_group": groups,
    }


BN = {"fix_gamma": False}
CALLS = [
    Call("sum", MANY, {}, "x.sum()"),
    Call("sum", {"data": (4096, 64)}, {"axis": 0}, "x.sum(0)"),
    Call("sum", {"data": (4096, 16)}, {"axis": 0}, "x.sum(0)"),
    Call("sum", {"data": (65536, 1024)}, {"axis": 0}, "x.sum(0)"),
    Call("sum", {"data": (65536, 1024)}, {"axis": 1}, "x.sum(1)"),
    Call("sum", {"data": (64, 1024, 1024)}, {"axis": 1}, "x.sum(1)"),
    Call("sum", {"data": (64, 64, 128, 128)}, {"axis": (0, 2, 3)}, "x.sum((0, 2, 3))"),
    Call("mean", MANY, {}, "x.mean()"),
    Call("max", MANY, {}, "x.max()"),
    Call("max", {"data": (65536, 1024)}, {"axis": 0}, "x.amax(0)"),
    Call("norm", MANY, {}, "x.norm()"),
    Call("prod", {"data": (65536, 1024)}, {"axis": 1}, "x.prod(1)"),
    Call("argmax", MANY, {}, "x.argmax()"),
    Call("argmax", {"data": (65536, 1024)}, {"axis": 1}, "x.argmax(1)"),
    Call("argmax", {"data": (64, 1024, 1024)}, {"axis": 1}, "x.argmax(1)"),
    Call("softmax", {"data": (65536, 1000)}, {}, "x.softmax(-1)"),
    Call("softmax", {"data": (65536, 2)}, {"axis": 0}, "x.softmax(0)"),
    Call("softmax", {"data": (8, 1000, 64, 64)}, {"axis": 1}, "x.softmax(1)"),
    Call("log_softmax", {"data": (8192, 50257)}, {}, "x.log_softmax(-1)"),
    Call("softmax", {"data": (65536, 1000)}, {}, "x.softmax(-1)", "float16"),
    Call("SoftmaxOutput", {"data": (65536, 1000), "label": whole((65536,), 1000)}, {}),
    Call(
        "softmax_cross_entropy",
        {"data": (65536, 1000), "label": whole((65536,), 1000)},
        {},
        "F.cross_entropy(x, args[1].long(), reduction='sum')",
    ),
    Call(
        "LayerNorm",
        {"data": (65536, 1024), "gamma": (1024,), "beta": (1024,)},
        {},
        "F.layer_norm(x, (1024,), args[1], args[2])",
    ),
    Call(
        "LayerNorm",
        {"data": (4096, 768), "gamma": (768,), "beta": (768,)},
        {},
        "F.layer_norm(x, (768,), args[1], args[2])",
    ),
    Call(
        "GroupNorm",
        {"data": (32, 64, 56, 56), "gamma": (8,), "beta": (8,)},
        {"num_groups": 8},
    ),
    Call(
        "InstanceNorm",
        {"data": (32, 64, 56, 56), "gamma": (64,), "beta": (64,)},
        {},
        "F.instance_norm(x, None, None, args[1], args[2])",
    ),
    *(
        Call("BatchNorm", norm(shape), BN, "F.batch_norm(x, args[3].clone(), args[4].clone(), args[1], args[2], True)")
        for shape in ((64, 3, 224, 224), (32, 64, 112, 112), (32, 256, 56, 56), (128, 2048, 7, 7))
    ),
    Call("BatchNorm", norm((32, 56, 56, 256), 3), {**BN, "axis": 3}),
    Call(
        "Embedding",
        {"data": whole((32, 512), 50257), "weight": (50257, 768)},
        {"input_dim": 50257, "output_dim": 768},
        "F.embedding(x.long(), args[1])",
    ),
    Call(
        "Embedding",
        {"data": whole((32, 512), 2), "weight": (50257, 768)},
        {"input_dim": 50257, "output_dim": 768},
        "F.embedding(x.long(), args[1])",
        note="two rows",
    ),
    Call("take", {"a": (50257, 768), "indices": whole((16384,), 50257)}, {}, "x[args[1].long()]"),
    Call(
        "BilinearSampler",
        {"data": (4, 64, 64, 64), "grid": (4, 2, 64, 64)},
        {},
        "F.grid_sample(x, args[1].permute(0, 2, 3, 1), align_corners=True)",
    ),
    Call(
        "Pooling",
        {"data": (32, 64, 112, 112)},
        {"kernel": (3, 3), "stride": (2, 2), "pool_type": "max"},
        "F.max_pool2d(x, 3, 2)",
    ),
    Call(
        "Pooling", {"data": (32, 2048, 7, 7)}, {"global_pool": True, "pool_type": "avg"}, "F.adaptive_avg_pool2d(x, 1)"
    ),
    Call(
        "Pooling",
        {"data": (32, 56, 56, 256)},
        {"global_pool": True, "pool_type": "avg", "layout": "NHWC"},
        "x.mean((1, 2))",
    ),
    *(
        Call(
            "Convolution",
            convolution(data, filters, kernel, groups),
            window(filters, kernel, stride, groups),
            f"F.conv2d(x, args[1], args[2], {stride}, {kernel // 2}, 1, {groups})",
            dtype,
        )
        for data, filters, kernel, stride, groups, dtype in (
            ((32, 3, 224, 224), 64, 7, 2, 1, "float32"),
            ((32, 64, 56, 56), 64, 3, 1, 1, "float32"),
            ((32, 256, 56, 56), 64, 1, 1, 1, "float32"),
            ((32, 256, 56, 56), 64, 1, 1, 1, "float16"),
            ((32, 64, 56, 56), 64, 3, 1, 1, "float16"),
            ((32, 128, 56, 56), 128, 3, 1, 128, "float32"),
        )
    ),
    Call(
        "Deconvolution",
        {"data": (32, 64, 28, 28), "weight": (64, 32, 4, 4), "bias": (32,)},
        {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "num_filter": 32, "no_bias": False},
        "F.conv_transpose2d(x, args[1], args[2], 2, 1)",
    ),
    *(
        Call(
            "FullyConnected",
            {"data": (4096, 4096), "weight": (4096, 4096), "bias": (4096,)},
            {"num_hidden": 4096},
            "F.linear(x, args[1], args[2])",
            dtype,
        )
        for dtype in ("float32", "float16", "bfloat16")
    ),
    Call("batch_dot", {"lhs": (256, 128, 64), "rhs": (256, 64, 128)}, {}, "torch.bmm(x, args[1])"),
    Call("transpose", {"data": (64, 128, 56, 56)}, {"axes": (0, 2, 3, 1)}, "x.permute(0, 2, 3, 1).contiguous()"),
    Call("transpose", {"data": (8192, 8192)}, {}, "x.t().contiguous()"),
    Call("broadcast_add", {"lhs": (8192, 4096), "rhs": (1, 4096)}, {}, "x + args[1]"),
    Call("broadcast_mul", {"lhs": (64, 256, 56, 56), "rhs": (64, 256, 1, 1)}, {}, "x * args[1]"),
    Call("exp", {"data": (1 << 25,)}, {}, "x.exp()"),
    Call("Activation", {"data": (1 << 25,)}, {"act_type": "relu"}, "x.relu()"),
    Call("LeakyReLU", {"data": (1 << 25,)}, {"act_type": "gelu"}, "F.gelu(x)"),
    Call("Dropout", {"data": (1 << 25,)}, {"p": 0.5}, "F.dropout(x, 0.5)"),
    Call(
        "Concat",
        {"arg0": (64, 128, 56, 56), "arg1": (64, 128, 56, 56)},
        {"dim": 1, "num_args": 2},
        "torch.cat((x, args[1]), 1)",
    ),
    Call("slice_axis", {"data": (64, 256, 56, 56)}, {"axis": 1, "begin": 64, "end": 128}, "x[:, 64:128].contiguous()"),
    Call("topk", {"data": (4096, 1000)}, {"k": 10, "ret_typ": "value"}, "x.topk(10)[0]"),
    Call("sort", {"data": (4096, 1000)}, {}, "x.sort()[0]"),
    Call("sort", {"data": (1, 1 << 22)}, {}, "x.sort()[0]"),
    Call("cumsum", {"a": (4096, 4096)}, {"axis": 1}, "x.cumsum(1)"),
    Call(
        "_contrib_box_nms",
        {"data": Input((4, 1000, 6), 0, 1, grad=False)},
        {"coord_start": 2, "score_index": 1, "id_index": -1},
    ),
    Call("_contrib_bipartite_matching", {"data": Input((16, 512, 512), 0, 1, grad=False)}, {"threshold": 0.1}),
    Call("LRN", {"data": (32, 96, 55, 55)}, {"nsize": 5}, "F.local_response_norm(x, 5)"),
    Call("L2Normalization", {"data": (65536, 1024)}, {}, "F.normalize(x)"),
    Call(
        "UpSampling",
        {"arg0": (32, 64, 56, 56)},
        {"scale": 2, "sample_type": "nearest", "num_args": 1},
        "F.interpolate(x, scale_factor=2)",
    ),
]


def draw(call: Call) -> dict[str, np.ndarray[Any, Any]]:
    """Return each input's numbers, the same in every run."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, spec in call.drawn().items():
        if spec.whole:
            arrays[name] = rng.integers(int(spec.low), int(spec.high), spec.shape).astype("float32")
        else:
            arrays[name] = rng.random(spec.shape, "float32") * np.float32(spec.high - spec.low) + np.float32(spec.low)
    return arrays


def per_call(run: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the ms of a call: some come first, which compile, choose and record."""
    for _ in range(3):
        run()
    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    count = max(1, min(LONGEST, int(BUSY_S / max(time.perf_counter() - start, 1e-6))))
    start = time.perf_counter()
    for _ in range(count):
        run()
    synchronize()
    return (time.perf_counter() - start) / count * 1e3


def opbox_ms(call: Call, arrays: dict[str, Any], backend: Any) -> tuple[list[float], int]:
    """Return ms of forward and of both, and the bytes of the inputs and outputs."""
    graph = call_graph(call.op, call.attrs, list(arrays))
    dtype = np.dtype("float32") if call.dtype == "bfloat16" else np.dtype(call.dtype)
    if call.dtype == "bfloat16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    drawn = call.drawn()
    put = {name: backend.put(a.astype(dtype) if not drawn[name].whole else a) for name, a in arrays.items()}
    args = {name: put[name] for name in graph.argument_names}
    aux = {name: put[name] for name in graph.auxiliary_names}
    grads = {name: backend.xp.empty_like(args[name]) for name in args if drawn[name].grad}
    executor = bind(graph, args=args, grads=grads, aux=aux, backend=backend, random=backend.random(0))
    executor.forward(is_train=True)
    outputs = list(executor.outputs)
    moved = sum(a.nbytes for a in [*put.values(), *outputs])
    heads = [backend.xp.ones_like(out) for out in outputs]
    if grads:
        heads = [h if v >= 0 else None for h, v in zip(heads, executor.plan.head_grads, strict=True)]

    def both() -> None:
        executor.forward(is_train=True)
        executor.backward(heads)

    (both if grads else lambda: None)()
    if backend.device_type == "gpu":
        search.settle(60)  # until cuDNN's algorithms for these shapes are measured
    times = [per_call(lambda: executor.forward(is_train=True), backend.synchronize)]
    if grads:
        times.append(per_call(both, backend.synchronize))
    return times, moved


def torch_ms(call: Call, arrays: dict[str, Any], device: str) -> list[float]:
    """Return PyTorch's ms of forward and of both; empty without PyTorch, or where it has no such function."""
    try:
        import torch
        import torch.nn.functional as F
    except ImportError:
        return []
    if not call.torch:
        return []
    on = "cuda" if device == "gpu" else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    drawn = call.drawn()
    args = []
    for name, array in arrays.items():
        tensor = torch.from_numpy(array).to(on)
        if not drawn[name].whole:
            tensor = tensor.to(getattr(torch, call.dtype))
        args.append(tensor.requires_grad_(drawn[name].grad and not drawn[name].whole))
    names = {"x": args[0], "args": args, "F": F, "torch": torch}
    code = compile(call.torch, call.op, "eval")
    wait = torch.cuda.synchronize if device == "gpu" else (lambda: None)
    wanted = [a for a in args if a.requires_grad]

    def forward() -> Any:
        return eval(code, names)

    times = [per_call(forward, wait)]
    result = forward()
    if wanted and result.requires_grad:
        head = torch.ones_like(result)
        del result
        times.append(per_call(lambda: torch.autograd.grad(forward(), wanted, head), wait))
    return times


def bytes_per_ms(backend: Any) -> float:
    """Return the bytes that a large copy reads and writes in a millisecond."""
    size = 1 << 28
    source, target = backend.xp.ones(size, "uint8"), backend.xp.ones(size, "uint8")

    def copy() -> None:
        target[...] = source

    return 2 * size / per_call(copy, backend.synchronize)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="calls whose name matches this regular expression")
    parser.add_argument("--seconds", type=float, default=120, help="calls that would begin later are left out")
    parser.add_argument("--json", type=Path, help="a file for the figures, written anew with each call")
    parser.add_argument("--device", default="gpu", choices=("gpu", "cpu"))
    options = parser.parse_args()
    backend = backend_for(options.device)
    rate = bytes_per_ms(backend)
    print(f"a copy moves {rate / 1e6:.0f} GB/s; ms: floor | opbox forward, both | PyTorch forward, both | over opbox")
    figures: dict[str, Any] = {"copy_gb_per_s": round(rate / 1e6, 1), "calls": {}}
    begin = time.monotonic()
    for call in CALLS:
        if not re.search(options.only, call.name):
            continue
        if time.monotonic() - begin > options.seconds:
            print(f"{call.name}: left out, as {options.seconds:g} s have passed")
            continue
        arrays = draw(call)
        try:
            ours, moved = opbox_ms(call, arrays, backend)
            theirs = torch_ms(call, arrays, options.device)
        except Exception as error:
            traceback.print_exc(limit=3)
            print(f"{call.name}: failed: {error}")
            figures["calls"][call.name] = {"failed": str(error)}
            continue
        finally:
            release(backend)
        floor = moved / rate
        ratio = [round(b / a, 2) for a, b in zip(ours, theirs, strict=False)]
        figures["calls"][call.name] = {"floor": floor, "opbox": ours, "torch": theirs, "ratio": ratio}
        shown = [" ".join(f"{t:9.3f}" for t in times) for times in (ours, theirs)]
        print(f"{call.name:66} {floor:8.3f} |{shown[0]:>20} |{shown[1]:>20} | {ratio}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def release(backend: Any) -> None:
    """Give the memory of a call back, before the next one takes as much."""
    if backend.xp is not np:
        backend.xp.get_default_memory_pool().free_all_blocks()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
