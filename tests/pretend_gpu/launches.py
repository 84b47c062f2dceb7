"""What every operator launches on a GPU at a large size: its kernels, their blocks and threads, and what they work on.

    make gpu-launches ARGS="--only REGEX"

Operators have the calls of benchmarks/large_calls.py, or their first row of tests/cases/ with its sizes grown, forward
and backward. Kernels are not compiled and do not run, so that a call costs no more than its preparation. cuDNN, cuBLAS
and the sort of CuPy are not seen.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import importlib
import json
import math
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.large_calls import LARGE_CALLS, REDUCING_CALLS, grown

from opbox_ops.backend import backend_for
from opbox_ops.compute import Mode, OpContext, OpReq
from opbox_protocol.errors import MXNetError
from tests.cases import all_cases
from tests.cases.case import Case
from tests.ops.harness import Call, Run

from .launch_reasons import Launch

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
_ITEM_SIZES = {"long long": 8, "double": 8, "char": 1, "__half": 2, "short": 2}
"""Bytes of an element by its name in C; 4 of others."""
_PARTS = ("unsigned results", "unsigned slices")
"""Parameters of the kernels that join slices, whose arrays are scratch that may be larger."""
_SCRATCH = ("A *wide", "const A *centre")
"""The same, of the kernels that make slices."""


class Memory:
    """Sizes of the arrays on the device, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, address: int, size: int) -> None:
        """An array was allocated, in the place of others that were there before."""
        if address not in self._sizes:
            bisect.insort(self._starts, address)
        self._sizes[address] = size

    def bytes_behind(self, address: int) -> int:
        """Bytes from an address to the end of its array; 0 of no array's."""
        k = bisect.bisect_right(self._starts, address) - 1
        return 0 if k < 0 else max(0, self._starts[k] + self._sizes[self._starts[k]] - address)


def _word(place: int, number: int = 0) -> int:
    return ctypes.c_int64.from_address(place + 8 * number).value


def elements(memory: Memory, parameters: Sequence[tuple[str, int]], itemsize: int) -> int:
    """How many elements a launch works on: those that its parameters count, or those of the largest array.

    Args:
        memory: the device's.
        parameters: as C declares them, and where they stand.
        itemsize: bytes of an element of the type `T` of kernels of our own.
    """
    counts, sizes = [0], [0]
    parts = [ctypes.c_uint32.from_address(p).value for name, p in parameters if name in _PARTS]
    if len(parts) == len(_PARTS) and parameters[0][0].endswith("parts"):
        return math.prod(parts)
    for declared, place in parameters:
        if "CIndexer" in declared:
            counts.append(_word(place))
        elif "CArray" in declared:
            sizes.append(_word(place, 1))
        elif "*" in declared and declared not in _SCRATCH:
            sizes_of = {**_ITEM_SIZES, "T ": itemsize}
            names = [size for name, size in sizes_of.items() if name in f"{declared.removeprefix('const ')}"]
            sizes.append(memory.bytes_behind(_word(place)) // (names or [4])[0])
    return max(counts) or max(sizes)


@contextmanager
def launched(memory: Memory, launches: list[Launch], operator: str, itemsize: int) -> Iterator[None]:
    """Add what is launched inside."""
    device: Any = importlib.import_module("pretend_gpu.device")

    def add(name: str, sizes: Sequence[int], parameters: list[tuple[str, int]]) -> None:
        blocks, threads = (int(np.prod(sizes[k : k + 3])) for k in (0, 3))
        launches.append(Launch(operator, name, blocks, threads, elements(memory, parameters, itemsize)))

    device.state.launched = add
    try:
        yield
    finally:
        device.state.launched = None


def step_of(call: Call) -> Callable[[], Any]:
    """A call's compute alone, bound as a plan binds it."""
    run, kernel = call.run, call.chosen()
    backend = run.backend
    context = OpContext(backend.xp, backend.special, backend.random(0), backend, Mode(run.case.is_train))
    context.temp = tuple(backend.empty(tuple(temp.shape), np.dtype(temp.dtype)) for temp in kernel.temps)
    context.state = run.states.get(call.node.forward or call.node)
    context.call, context.req = call.spec(), (OpReq.WRITE,) * len(call.shapes)
    outputs = [backend.empty(shape, dtype) for shape, dtype in zip(call.shapes, call.dtypes, strict=True)]
    return kernel.bind(call.node.params, context, call.inputs, outputs)


def launches_of(case: Case, memory: Memory) -> list[Launch]:
    """What a call launches, forward and backward."""
    run, launches = Run(case, case.dtypes[0], backend_for("gpu:0")), []
    run.forward()
    if case.grad and run.wanted():
        run.backward()
    for call in run.calls:
        with launched(memory, launches, call.node.op.name, np.dtype(case.dtypes[0]).itemsize):
            step_of(call)()
    return launches


def large(only: str, part: int, parts: int) -> Iterator[Case]:
    """The calls of the operators whose name `only` matches, of one of so many parts of them."""

    def is_wanted(case: Case) -> bool:
        return bool(re.search(only, case.op)) and zlib.crc32(case.op.encode()) % parts == part

    first: dict[str, Case] = {}
    for case in filter(is_wanted, all_cases()):
        first.setdefault(case.op, case)
    for op, case in first.items():
        call = replace(LARGE_CALLS[op], grad=case.grad) if op in LARGE_CALLS else grown(case, largest=True)
        if call is not None:
            yield call
    yield from filter(is_wanted, REDUCING_CALLS)


def measured(cases: Iterable[Case]) -> Iterator[tuple[Case, list[Launch], str]]:
    """Each call, what it launches, and why that is not known."""
    cupy: Any = importlib.import_module("cupy")
    memory = Memory()

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]  # CuPy has no types
        name = "launches"

        def malloc_postprocess(self, **what: Any) -> None:
            memory.add(what["mem_ptr"], what["size"])

    with Hook(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in cases:
            try:
                yield case, launches_of(case, memory), ""
            except (MXNetError, ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError) as error:
                # What kernels would have computed, and the host reads, is 0 here.
                yield case, [], f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name matches this regular expression")
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), help="which of so many parts of the operators")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each call instead")
    options = parser.parse_args()
    if not os.environ.get("PRETEND_GPU_ONLY_LAUNCHES"):
        os.execve(sys.executable, [sys.executable, "-m", "tests.pretend_gpu.launches", *sys.argv[1:]], {
            **os.environ, "PRETEND_GPU_ONLY_LAUNCHES": "1",
        })  # fmt: skip
    for case, launches, reason in measured(large(options.only, *options.part)):
        if options.json:
            line = {"call": case.id, "operator": case.op, "reason": reason}
            print(json.dumps({**line, "launches": [asdict(one) for one in dict.fromkeys(launches)]}), flush=True)
            continue
        print(f"{case.id}{f': not known: {reason}' if reason else ''}")
        lines = [f"  {one.operator:36} {one.kernel:40} {one.blocks:9} x {one.threads:4} {one.elements:10} {one.fault}"
                 for one in launches]  # fmt: skip
        for line in dict.fromkeys(lines):
            print(f"{line}{f'  {lines.count(line)} times' if lines.count(line) > 1 else ''}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
