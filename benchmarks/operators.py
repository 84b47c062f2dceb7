"""Every operator beside MXNet's own, small and large, forward and with backward, worst first.

    python benchmarks/operators.py [--only REGEX] [--seconds 0.1] [--keep FILE [--resume]]

Small is the operator's first row in tests/cases/ that MXNet takes, a unit test's call; large is its row in
large_calls.py, a layer of a network, or the small one with its sizes grown until there are about a million numbers.
Both sides bind the call once and repeat it, in turns, one thread each: opbox's executor here, MXNet 1.9.1's in its own
environment (`make conformance` sets it up), fed over a pipe. The least time of a call counts, in microseconds: by the
clock under a millisecond, above by the processor, so that what else the machine does counts for neither.

An operator that takes longer than SLOW times MXNet's has its reason in `slow_reasons.py`; none takes longer than
TOO_SLOW times. The exit status says whether that holds. With --keep, calls are added to FILE as they are measured and
the table is that of the whole file; --resume leaves out operators that it has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.large_calls import LARGE_CALLS, grown
from benchmarks.slow_reasons import REASONS
from tests.cases import all_cases
from tests.cases.case import Case
from tests.cases.values import head_gradient, inputs
from tests.conformance.drawing import resized
from tests.conformance.examining import wanted_gradients
from tests.conformance.mxnet import Oracle, OracleDiedError, RefusedError
from tests.conformance.timing import least_time
from tests.ops.one_call import call_graph

from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from opbox_service.executor import bind

ROUNDS = 3
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SLOW, TOO_SLOW = 3.0, 20.0


@dataclass
class Timed:
    """One call on both sides, in seconds: forward, or forward and backward."""

    op: str
    size: str
    mode: str
    shapes: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


class Call:
    """One call bound here; `run[mode]` runs it."""

    def __init__(self, case: Case, arrays: dict[str, Any], wanted: list[str]) -> None:
        cpu = backend_for("cpu")
        graph = call_graph(case.op, case.attrs, list(arrays))
        args = {name: cpu.put(arrays[name]) for name in graph.argument_names}
        aux = {name: cpu.put(arrays[name]) for name in graph.auxiliary_names}
        self.wanted = [name for name in wanted if name in args]
        grads = {name: np.empty_like(args[name]) for name in self.wanted}
        executor = bind(graph, args=args, grads=grads, aux=aux, backend=cpu, random=cpu.random(0))
        executor.forward(is_train=True)
        self.heads = [head_gradient(case, k, out.shape, out.dtype) for k, out in enumerate(executor.outputs)]
        needed = executor.plan.head_grads if self.wanted else [-1] * len(self.heads)
        heads = [head if value >= 0 else None for head, value in zip(self.heads, needed, strict=True)]

        def forward() -> None:
            executor.forward(is_train=True)

        def both() -> None:
            executor.forward(is_train=True)
            executor.backward(heads)

        self.run = {"forward": forward} | ({"both": both} if self.wanted else {})


def time_call(oracle: Oracle, case: Case, size: str, seconds: float) -> list[Timed]:
    """One call on both sides; nothing when either does not take it."""
    arrays = inputs(case, case.dtypes[0])
    shapes = " ".join(str(array.shape).replace(" ", "") for array in arrays.values())
    timed = []
    try:
        call = Call(case, arrays, wanted_gradients(case, arrays))
        sent = {f"arg:{n}": a for n, a in arrays.items()} | {f"head:{k}": h for k, h in enumerate(call.heads)}
        attrs = {key: str(value) for key, value in case.attrs.items()}
        for mode, run in call.run.items():
            ours = theirs = float("inf")
            for _ in range(ROUNDS):
                ours = min(ours, least_time(run, seconds / ROUNDS))
                wanted = call.wanted if mode == "both" else []
                asked = {"op": case.op, "attrs": attrs, "names": list(arrays), "wanted": wanted}
                theirs = min(theirs, oracle.ask("time", sent, **asked, seconds=seconds / ROUNDS)[0]["seconds"])
            timed.append(Timed(case.op, size, mode, shapes, ours, theirs))
    except (MXNetError, RefusedError, OracleDiedError):
        return []
    return timed


def measured(only: str, seconds: float, without: set[str]) -> Iterator[Timed]:
    """The calls of every operator whose name `only` matches."""
    oracle = Oracle()
    rows: dict[str, list[Case]] = {}
    for case in all_cases():
        if case.oracle and re.search(only, case.op) and case.op not in without:
            rows.setdefault(case.op, []).append(case)
    for op, cases in rows.items():
        for case in cases[:3]:
            small = time_call(oracle, resized(case, {}), "small", seconds)
            if small:
                yield from small
                large = replace(LARGE_CALLS[op], grad=case.grad) if op in LARGE_CALLS else grown(case)
                if large is not None:
                    yield from time_call(oracle, large, "large", seconds)
                break
    oracle.close()


def table(rows: list[Timed]) -> Iterator[str]:
    """The lines of the report, worst first."""
    yield f"{'operator':38} {'size':6}{'':8} {'opbox us':>10} {'MXNet us':>10} {'ratio':>6}  inputs"
    for row in rows:
        reason = f"  {REASONS.get(row.op, 'NO REASON')}" if row.ratio > SLOW else ""
        times = f"{1e6 * row.ours:10.1f} {1e6 * row.theirs:10.1f} {row.ratio:6.2f}"
        yield f"{row.op:38} {row.size:6}{row.mode:8} {times}  {row.shapes[:60]}{reason}"
    for mode in ("forward", "both"):
        for size in ("small", "large"):
            ratios = [row.ratio for row in rows if (row.size, row.mode) == (size, mode)]
            if ratios:
                yield (
                    f"{size} {mode}: {len(ratios)} operators, median ratio {np.median(ratios):.2f}, "
                    f"{sum(ratio > SLOW for ratio in ratios)} above {SLOW:g}, worst {max(ratios):.1f}"
                )


def without_mxnet(rows: list[Timed]) -> Iterator[str]:
    """The operators that were not measured, and why."""
    cases = {case.op: case for case in reversed(all_cases())}
    for op in sorted(set(cases) - {row.op for row in rows}):
        case = cases[op]
        yield f"not measured: {op}: {'MXNet binds it in no graph' if case.imperative or not case.why else case.why}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="a regular expression that operators' names match")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a call is repeated on each side")
    parser.add_argument("--keep", type=Path, help="a file of measured calls, to be added to")
    parser.add_argument("--resume", action="store_true", help="leave out operators that the file has")
    chosen = parser.parse_args()
    if set(THREADS.items()) - set(os.environ.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **THREADS})
    warnings.simplefilter("ignore")
    timed: dict[tuple[str, str, str], Timed] = {}
    if chosen.keep and chosen.keep.exists():
        lines = [Timed(**json.loads(line)) for line in chosen.keep.read_text().splitlines()]
        timed = {(row.op, row.size, row.mode): row for row in lines}
    without = {op for op, *_ in timed} if chosen.resume else set()
    with np.errstate(all="ignore"):
        for row in measured(chosen.only, chosen.seconds, without):
            timed[row.op, row.size, row.mode] = row
            if chosen.keep:
                with chosen.keep.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    rows = sorted(timed.values(), key=lambda row: -row.ratio)
    print("\n".join([*table(rows), *(without_mxnet(rows) if not chosen.only or chosen.keep else ())]))
    return int(any(row.ratio > TOO_SLOW or (row.ratio > SLOW and row.op not in REASONS) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
