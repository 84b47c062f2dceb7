"""Every operator with large inputs: how long it works on after it has been stopped, and how long nobody else runs.

    python benchmarks/long_steps.py                       # every operator, 16 million elements of the largest input
    python benchmarks/long_steps.py sort dot --elements 1e7

Rows of the operator table, one dimension at a time made so large that the inputs have that many elements. The call is
stopped after 50 ms of its thread's processor time; printed are the milliseconds of processor time that it takes until
it has ended ("after"), and the most that it takes between two turns of another thread ("lock": the interpreter's lock
is held). Both are of one thread, so that other programs on the machine do not change them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cases import Arg, Case, all_cases  # noqa: E402
from tests.contract.live import symbol, var  # noqa: E402

from opbox_protocol.collector import begin_tending  # noqa: E402
from opbox_protocol.errors import CancelledError, MXNetError  # noqa: E402
from opbox_service.engine import Engine  # noqa: E402
from opbox_service.settings import Settings  # noqa: E402

STOP_S = 0.05
LOOK_S = 0.002
PATIENCE_S = 30.0
PRINTED_MS = 100
"""What ends sooner is not printed without --all."""


@dataclass
class Outcome:
    """One call: what it was, the processor seconds that it took in all and after its stop, and with the lock held."""

    name: str
    status: str
    seconds: float
    after: float
    lock: float


def arrays_of(case: Case, dimension: int, elements: float) -> dict[str, np.ndarray] | None:
    """The row's inputs with every dimension of this size made larger; None where that is no larger row."""
    shapes = {name: arg.shape if isinstance(arg, Arg) else tuple(arg) for name, arg in case.inputs.items()}
    most = max((np.prod(shape, dtype=float) * 1.0 for shape in shapes.values() if dimension in shape), default=0)
    times = max((shape.count(dimension) for shape in shapes.values()), default=0)
    if not most or not times:
        return None
    factor = int((elements / most) ** (1 / times))
    if factor < 2:
        return None
    generator = np.random.default_rng(0)
    arrays = {}
    for name, value in case.inputs.items():
        arg = value if isinstance(value, Arg) else Arg(tuple(value))
        shape = tuple(size * factor if size == dimension else size for size in arg.shape)
        dtype = np.dtype(arg.dtype or case.dtypes[0])
        if arg.values is not None:
            array = np.resize(np.asarray(arg.values), shape)
        elif arg.kind == "int":
            array = generator.integers(int(arg.low), int(arg.high) + 1, shape, dtype=np.int32)
        else:
            array = generator.random(shape, np.float32)
            array *= arg.high - arg.low
            array += arg.low
        arrays[name] = array.astype(dtype, copy=False)
    return arrays


def measured(engine: Engine, name: str, route: str, graph: Any, arrays: dict[str, np.ndarray]) -> tuple[Outcome, Any]:
    """Run one call, and stop it; its outcome and answer."""
    call = engine.read("POST", route, {"graph": graph, "parameters": {"is_train": True}}, arrays)
    clock = time.pthread_getcpuclockid(threading.get_ident())
    begun = time.clock_gettime(clock)
    ended = threading.Event()
    seen: list[float] = []
    longest = [0.0]

    def watch() -> None:
        before = time.clock_gettime(clock)
        while not ended.wait(LOOK_S):
            now = time.clock_gettime(clock)
            longest[0] = max(longest[0], now - before)
            before = now
            if not seen and now > begun + STOP_S:
                call.task.stop(CancelledError("it was cancelled"))
                seen.append(time.clock_gettime(clock))

    watcher = threading.Thread(target=watch)
    watcher.start()
    answers: list[Any] = []
    try:
        rest = engine.begin(call, answers.append)
        assert rest is None
    except MXNetError as error:
        answers.append(error)
    end = time.clock_gettime(clock)
    ended.set()
    watcher.join()
    answer = answers[0]
    status = type(answer).__name__ if isinstance(answer, BaseException) else "ok"
    return Outcome(name, status, end - begun, end - seen[0] if seen else 0.0, longest[0]), answer


def of_case(engine: Engine, case: Case, elements: float) -> Iterator[Outcome]:
    """Each dimension of a row made large."""
    sizes = {size for arg in case.inputs.values() for size in (arg.shape if isinstance(arg, Arg) else arg)}
    for dimension in sorted(sizes, reverse=True):
        arrays = arrays_of(case, dimension, elements)
        if arrays is None:
            continue
        texts = {key: str(value) for key, value in case.attrs.items()}
        graph = symbol(*map(var, arrays), (case.op, "y", texts, list(range(len(arrays)))))
        name = f"{case.op}[{','.join(f'{k}={v}' for k, v in texts.items())}] " + " ".join(
            str(array.shape).replace(" ", "") for array in arrays.values()
        )
        try:
            outcome, _ = measured(engine, name, "/v1/forward", graph, arrays)
        except MXNetError:
            continue
        if outcome.status not in ("ok", "CancelledError"):
            continue
        yield outcome
        if case.grad:
            try:
                yield measured(engine, f"backward of {name}", "/v1/backward", graph, arrays)[0]
            except MXNetError:
                continue


def work(rows: list[Case], elements: float, outcomes: Any) -> None:
    engine = Engine(Settings(max_session_bytes=6 << 30))
    begin_tending()  # as a worker process does: the collector of garbage keeps the lock, too
    for case in rows:
        for outcome in of_case(engine, case, elements):
            outcomes.put(outcome)
    outcomes.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="all by default")
    parser.add_argument("--elements", type=float, default=1.6e7)
    parser.add_argument("--rows", type=int, default=2, help="rows of each operator")
    parser.add_argument("--all", action="store_true", help="what ends soon too")
    options = parser.parse_args()
    rows: dict[str, list[Case]] = {}
    for case in all_cases():
        if (not options.operators or case.op in options.operators) and len(rows.get(case.op, ())) < options.rows:
            rows.setdefault(case.op, []).append(case)
    spawn = multiprocessing.get_context("spawn")
    print(f"{'status':>16}{'all, ms':>9}{'after':>8}{'lock':>8}  call")
    begun = time.monotonic()
    names = list(rows)
    while names:
        outcomes = spawn.Queue()
        process = spawn.Process(target=work, args=([c for n in names for c in rows[n]], options.elements, outcomes))
        process.start()
        last = ""
        try:
            while (outcome := outcomes.get(timeout=PATIENCE_S)) is not None:
                last = outcome.name.removeprefix("backward of ").partition("[")[0]
                if options.all or max(outcome.after, outcome.lock) * 1e3 > PRINTED_MS:
                    figures = (outcome.seconds, outcome.after, outcome.lock)
                    numbers = "".join(f"{f * 1e3:{w}.0f}" for f, w in zip(figures, (9, 8, 8), strict=True))
                    print(f"{outcome.status:>16}{numbers}  {outcome.name[:150]}", flush=True)
            names = []
        except Exception:
            process.kill()
            at = names.index(last) if last in names else -1
            stuck = names[at + 1] if at + 1 < len(names) else ""
            print(f"{'none':>16} after {PATIENCE_S:g} s: {last} or {stuck}", flush=True)
            names = names[at + 2 :]
        process.join()
    print(f"{len(rows)} operators, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
