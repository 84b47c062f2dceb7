"""Every operator beside MXNet's own, forward and backward, small and large, worst first.

    python benchmarks/operators.py [--only REGEX] [--seconds 0.05]

Small is the operator's first row in tests/cases/ that MXNet takes; large is the same call with its sizes grown until
the inputs have about a million numbers. Both sides bind the call once and repeat it, one thread each: opbox's executor
here, MXNet 1.9.1's in its own environment (`make conformance` sets it up), fed over a pipe. The best time is taken.

An operator that is slower than SLOW times MXNet is to have a reason in REASONS; none may be slower than TOO_SLOW times.
The exit status says whether that holds.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cases import all_cases
from tests.cases.case import Case
from tests.cases.values import as_arg, head_gradient, inputs
from tests.conformance.drawing import resized
from tests.conformance.examining import wanted_gradients
from tests.conformance.mxnet import Oracle, OracleDiedError, RefusedError
from tests.ops.one_call import call_graph

from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from opbox_service.executor import bind
from opbox_service.graph.passes.infer_shape import infer_shape

LARGE = 2**20
FACTORS = (512, 256, 128, 64, 32, 16, 8, 4, 3, 2)
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SLOW, TOO_SLOW = 3.0, 20.0
FEW = "dozens of NumPy calls on a few numbers"
REASONS: dict[str, str] = {
    "_contrib_DeformablePSROIPooling": FEW,
    "_contrib_MultiBoxDetection": FEW + "; batches of a few anchors",
    "_contrib_MultiBoxTarget": FEW,
    "_contrib_MultiProposal": FEW,
    "_contrib_PSROIPooling": FEW,
    "_contrib_Proposal": FEW,
    "_contrib_ROIAlign": FEW,
    "_contrib_RROIAlign": FEW,
    "_contrib_bipartite_matching": FEW,
    "_contrib_box_nms": FEW + "; large: wide rows, sorted by copying",
    "_image_random_color_jitter": FEW,
    "_image_random_contrast": "float products and a mean, where MXNet does one pass",
    "_image_random_hue": FEW,
}
"""Why an operator is slower than SLOW times MXNet's."""


@dataclass
class Timed:
    """One call on both sides, in seconds."""

    op: str
    size: str
    shapes: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def grown(case: Case) -> Case | None:
    """The row with about LARGE numbers: all its sizes grown, or those of its first axis."""
    names = list(case.inputs)
    for factor in FACTORS:
        for renaming in ("all", "first"):
            sizes = _renaming(case, factor, renaming)
            count = sum(math.prod(sizes.get(d, d) for d in as_arg(arg).shape) for arg in case.inputs.values())
            if not sizes or count > 2 * LARGE:
                continue
            larger = resized(case, sizes)
            try:
                graph = call_graph(case.op, larger.attrs, names)
                larger_shapes = infer_shape(graph, {name: tuple(arg.shape) for name, arg in larger.inputs.items()})
            except MXNetError:
                continue
            if sum(math.prod(shape) for shape in larger_shapes.entries if shape) <= 8 * LARGE:
                return larger
    return None


def _renaming(case: Case, factor: int, which: str) -> dict[int, int]:
    shapes = [tuple(as_arg(arg).shape) for arg in case.inputs.values()]
    chosen = {d for shape in shapes for d in (shape if which == "all" else shape[:1])}
    return {d: d * factor for d in chosen if d > 1}


def measure(run: Any, seconds: float) -> float:
    """The least time of a call, tried for about so long."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def ours(case: Case, arrays: dict[str, Any], wanted: list[str], seconds: float) -> tuple[float, list[Any]]:
    """Seconds of a call here, and its head gradients."""
    cpu = backend_for("cpu")
    graph = call_graph(case.op, case.attrs, list(arrays))
    args = {name: cpu.put(arrays[name]) for name in graph.argument_names}
    aux = {name: cpu.put(arrays[name]) for name in graph.auxiliary_names}
    wanted[:] = [name for name in wanted if name in args]
    grads = {name: np.empty_like(args[name]) for name in wanted}
    executor = bind(graph, args=args, grads=grads, aux=aux, backend=cpu, random=cpu.random(0))
    executor.forward(is_train=True)
    heads = [head_gradient(case, k, out.shape, out.dtype) for k, out in enumerate(executor.outputs)]
    needed = executor.plan.head_grads if wanted else [-1] * len(heads)
    head_grads = [head if value >= 0 else None for head, value in zip(heads, needed, strict=True)]

    def run() -> None:
        executor.forward(is_train=True)
        if wanted:
            executor.backward(head_grads)

    return measure(run, seconds), heads


def time_call(oracle: Oracle, case: Case, size: str, seconds: float) -> Timed | None:
    """One call on both sides; None when either does not take it."""
    arrays = inputs(case, case.dtypes[0])
    wanted = wanted_gradients(case, arrays)
    try:
        mine, heads = ours(case, arrays, wanted, seconds)
        theirs = oracle.ask(
            "time",
            {f"arg:{n}": a for n, a in arrays.items()} | {f"head:{k}": h for k, h in enumerate(heads)},
            op=case.op,
            attrs={key: str(value) for key, value in case.attrs.items()},
            names=list(arrays),
            wanted=wanted,
            seconds=seconds,
        )[0]
    except (MXNetError, RefusedError, OracleDiedError):
        return None
    return Timed(
        case.op, size, " ".join(str(a.shape).replace(" ", "") for a in arrays.values()), mine, theirs["seconds"]
    )


def measured(only: str, seconds: float) -> Iterator[Timed]:
    """The calls of every operator whose name `only` matches."""
    oracle = Oracle()
    rows: dict[str, list[Case]] = {}
    for case in all_cases():
        if case.oracle and re.search(only, case.op):
            rows.setdefault(case.op, []).append(case)
    for cases in rows.values():
        for case in cases[:3]:
            small = time_call(oracle, resized(case, {}), "small", seconds)
            if small is None:
                continue
            yield small
            large = grown(case)
            timed = time_call(oracle, large, "large", seconds) if large is not None else None
            if timed is not None:
                yield timed
            break
    oracle.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="a regular expression that operators' names match")
    parser.add_argument("--seconds", type=float, default=0.05, help="how long a call is repeated on each side")
    chosen = parser.parse_args()
    if set(THREADS.items()) - set(os.environ.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **THREADS})
    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        rows = sorted(measured(chosen.only, chosen.seconds), key=lambda row: -row.ratio)
    print(f"{'operator':36} {'size':6} {'opbox':>10} {'MXNet':>10} {'ratio':>7}  inputs")
    failed = []
    for row in rows:
        reason = REASONS.get(row.op, "")
        print(
            f"{row.op:36} {row.size:6} {1e6 * row.ours:8.1f}us {1e6 * row.theirs:8.1f}us {row.ratio:7.2f}  "
            f"{row.shapes[:60]}{'  ' + reason if row.ratio > SLOW and reason else ''}"
        )
        if row.ratio > TOO_SLOW or (row.ratio > SLOW and not reason):
            failed.append(row.op)
    ratios = [row.ratio for row in rows]
    if ratios:
        print(f"{len(rows)} calls, median ratio {np.median(ratios):.2f}; {len(failed)} without a reason above {SLOW}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
