"""A process that times symbols for `cpu_vs_peers.py` and `gpu_vs_peers.py`.

    python symbols.py opbox|mxnet [cpu|gpu]

It reads a line of JSON for each task, {"name": …, "symbol": …, "shapes": …, "runs": …, "dtype": …}, and answers with a
line: the seconds of each run of forward, and of forward with backward. A symbol that it has had is bound once. With
"seconds", there are more runs until that time has passed; with "release", the memory is given back behind the answer.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import warnings

warnings.simplefilter("ignore")
mx = importlib.import_module(sys.argv[1])
context = mx.gpu(0) if sys.argv[2:] == ["gpu"] else mx.cpu()
executors: dict = {}
WARM_RUNS = 3


def bind(task: dict) -> object:
    shapes = {name: tuple(shape) for name, shape in task["shapes"].items()}
    symbol = mx.sym.load_json(json.dumps(task["symbol"]))
    free = [name for name in symbol.list_arguments() if name not in shapes and name != "softmax_label"]
    req = {name: "write" if name in free else "null" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(
        context, grad_req=req, type_dict=dict.fromkeys(shapes, task.get("dtype", "float32")), **shapes
    )
    for name, array in executor.arg_dict.items():
        fan_in = 1
        for size in array.shape[1:]:
            fan_in *= size
        array[:] = mx.nd.random.normal(shape=array.shape) / fan_in**0.5 if name in free else 1
    for array in executor.aux_dict.values():
        array[:] = 1
    return executor


def seconds(executor: object, backward: bool) -> float:
    start = time.perf_counter()
    outputs = executor.forward(is_train=backward)
    if backward:
        executor.backward()
        mx.nd.waitall()
    else:
        outputs[0].wait_to_read()
    return time.perf_counter() - start


def repeated(executor: object, backward: bool, task: dict) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + task.get("seconds", 0)
    while len(times) < task["runs"] or time.perf_counter() < until:
        times.append(seconds(executor, backward))
    return times


def release() -> None:
    """Let the memory of all networks go: the device is shared with the other processes."""
    executors.clear()
    gc.collect()
    mx.nd.waitall()
    if context.device_type == "gpu":
        context.empty_cache()


def settle() -> None:
    """Wait until the algorithms of convolutions are measured; a server's process reads what this one has written."""
    if context.device_type == "gpu" and sys.argv[1] == "opbox" and not os.environ.get("OPBOX_URL"):
        importlib.import_module("opbox_ops.cudnn.search").settle(60)


for line in sys.stdin:
    task = json.loads(line)
    key = task["name"]
    if key not in executors:
        release()
        executors[key] = bind(task)
        # A first run compiles and chooses; where that was measured, one is eager again and the next one records.
        for backward in (False, True):
            seconds(executors[key], backward)
        settle()
        for backward in (False, True) * WARM_RUNS:
            seconds(executors[key], backward)
    answer = [repeated(executors[key], backward, task) for backward in (False, True)]
    print(json.dumps(answer), flush=True)
    if task.get("release"):
        release()
