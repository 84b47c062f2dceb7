"""Two operators that every training step runs: adding up an embedding's gradient, and an optimizer's step.

    python benchmarks/rows_and_steps.py

Beside them, in turn in one run: numpy.add.at for the rows, the formula written out in NumPy for the steps, and MXNet
where it is found (OPBOX_ORACLE_PYTHON, or .venv-mxnet). Times are the best of several, in milliseconds; one thread each
with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec, OpContext, OpReq
from opbox_ops.index.added_rows import add_rows, add_rows_temps

ROWS = ((4480, 650, 10_000), (2048, 128, 128), (100_000, 1, 1_000))
SIZES = (1_000, 100_000, 2_000_000)
ORACLE = """
import json, sys, time, mxnet as mx
def best(f):
    f(); mx.nd.waitall(); times = []
    for _ in range(10):
        t = time.perf_counter(); f(); mx.nd.waitall(); times.append(time.perf_counter() - t)
    return min(times) * 1e3
seconds = []
for n in json.loads(sys.stdin.readline()):
    w, g, m, v = (mx.nd.random.uniform(shape=(n,)) for _ in range(4))
    seconds.append([best(lambda: mx.nd.sgd_mom_update(w, g, m, out=w, lr=.1, momentum=.9, wd=1e-4)),
                  best(lambda: mx.nd.adam_update(w, g, m, v, out=w, lr=.1, wd=1e-4))])
print(json.dumps(seconds))
"""


def best(function: Callable[[], Any], times: int = 10) -> float:
    """The shortest of several runs, in milliseconds."""
    function()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return min(taken) * 1e3


def mxnet_steps() -> list[list[float]] | None:
    """MXNet's times for SIZES: momentum and Adam; None where there is no MXNet."""
    python = os.environ.get("OPBOX_ORACLE_PYTHON", ".venv-mxnet/bin/python")
    if not Path(python).exists():
        return None
    run = subprocess.run([python, "-c", ORACLE], input=json.dumps(SIZES), capture_output=True, text=True, check=True)
    seconds: list[list[float]] = json.loads(run.stdout.splitlines()[-1])
    return seconds


def step(name: str, attrs: dict[str, float], arrays: list[Any]) -> Callable[[], None]:
    """A prepared call of an update operator, in place."""
    op, backend = registry.get(name), backend_for("cpu")
    params = op.parse(attrs)
    specs = tuple(ArraySpec(a.shape, a.dtype) for a in arrays)
    call = CallSpec("cpu", specs, specs[:1])
    kernel = op.choose(params, call)
    temp = tuple(backend.empty(t.shape, t.dtype) for t in kernel.temps)
    ctx = OpContext(xp=np, special=None, random=None, backend=backend, temp=temp, req=(OpReq.INPLACE,))
    return kernel.bind(params, ctx, arrays, [arrays[0]])


def main() -> None:
    rng = np.random.default_rng(0)
    print("rows (count, width, of)          add_rows   numpy.add.at   ratio")
    for count, width, size in ROWS:
        where, rows = rng.integers(0, size, count), rng.standard_normal((count, width), dtype="float32")
        total = np.zeros((size, width), "float32")
        specs = [ArraySpec(array.shape, array.dtype) for array in (rows, total)]
        temps = [np.empty(temp.shape, temp.dtype) for temp in add_rows_temps("cpu", count, *specs)]
        ours = best(partial(add_rows, np, where, rows, total, temps, fresh=False))
        peer = best(partial(np.add.at, total, where, rows))
        print(f"{count!s:>8} {width!s:>6} {size!s:>8}      {ours:10.3f}     {peer:10.3f}  {peer / ours:6.1f}")
    mxnet = mxnet_steps()
    print("step                  elements      opbox     formula       MXNet")
    for k, n in enumerate(SIZES):
        w, g, m, v = (rng.random(n, dtype="float32") for _ in range(4))

        def momentum(w: Any = w, g: Any = g, m: Any = m) -> None:
            m[...] = 0.9 * m - 0.1 * (g + 1e-4 * w)
            w += m

        def adam(w: Any = w, g: Any = g, m: Any = m, v: Any = v) -> None:
            d = g + 1e-4 * w
            m[...] = 0.9 * m + 0.1 * d
            v[...] = 0.999 * v + 0.001 * d * d
            w -= 0.1 * m / (np.sqrt(v) + 1e-8)

        table = (
            ("sgd_mom_update", {"lr": 0.1, "momentum": 0.9, "wd": 1e-4}, [w, g, m], momentum),
            ("adam_update", {"lr": 0.1, "wd": 1e-4}, [w, g, m, v], adam),
        )
        for j, (name, attrs, arrays, formula) in enumerate(table):
            ours, peer = best(step(name, attrs, arrays)), best(formula)
            other = f"{mxnet[k][j]:10.3f}" if mxnet else "         -"
            print(f"{name:16} {n:>13} {ours:10.3f}  {peer:10.3f}  {other}")


if __name__ == "__main__":
    main()
