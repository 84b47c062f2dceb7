"""The process of a self-check: python -m opbox_service.selfcheck.child gpu:0, started by `supervision`.

It reads a line of JSON, what is done and what must not run again, and writes lines as `record` keeps them: before a
compute runs, so that the compute is known if it ends the process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opbox_ops import registry, trust
from opbox_ops.backend import Backend, backend_for
from opbox_ops.backend.failure import device_error, lost
from opbox_ops.selfcheck.comparison import Comparison
from opbox_ops.selfcheck.convolutions import compare_algorithms
from opbox_ops.selfcheck.row import CHECKED_TYPES, Row
from opbox_ops.selfcheck.table import ROWS
from opbox_protocol.errors import MXNetError

from ..executor.replay import GRAPHS
from .network import compare

__all__ = ["main", "units"]

_PR_SET_PDEATHSIG = 1
_NETWORK = "network"
Names = Sequence[tuple[str, str]]
Unit = Callable[[Backend, Backend, Callable[[Names], None]], dict[tuple[str, str], str]]
"""`(host, device, running)` to the answers; `running` is called with the computes that are about to run."""


def units(rows: Sequence[Row] = ROWS) -> Iterator[tuple[str, Unit]]:
    """What is checked, by name, in order: the rows' first types, cuDNN's algorithms, a network, further types."""
    for position in range(len(CHECKED_TYPES)):
        for number, row in enumerate(rows):
            if position < len(row.types):
                dtype = row.types[position]
                yield f"{row.op} {number} {dtype}", _unit(row, dtype)
        yield f"cuDNN {CHECKED_TYPES[position]}", _algorithms(CHECKED_TYPES[position])
        if not position:
            yield _NETWORK, _network


def _unit(row: Row, dtype: str) -> Unit:
    def check(host: Backend, device: Backend, running: Callable[[Names], None]) -> dict[tuple[str, str], str]:
        answers: dict[tuple[str, str], str] = {}
        for attrs, inputs in row.calls(dtype):
            comparison = Comparison(row, attrs, inputs, dtype, host, device, running)
            try:
                comparison.run()
            except MXNetError:
                if lost() is not None:
                    raise
                # The operator does not take this type: there is nothing to check.
            for key, reason in comparison.answers.items():
                answers[key] = answers.get(key) or reason
        return answers

    return check


def _algorithms(dtype: str) -> Unit:
    return lambda host, device, running: compare_algorithms(device, dtype, running)


def _network(host: Backend, device: Backend, running: Callable[[Names], None]) -> dict[tuple[str, str], str]:
    running([(GRAPHS, trust.ANY_TYPE)])
    return {(name, trust.ANY_TYPE): reason for name, reason in compare(device, host).items()}


def main(argv: Sequence[str]) -> int:
    """Check the device argv[0]; returns 0 at the end, 1 where the device is lost."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not outlive its supervisor
    # The lines go where standard output went; what libraries print there does not mix with them.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    known = json.loads(sys.stdin.readline())

    def write(**line: Any) -> None:
        print(json.dumps(line), file=lines, flush=True)

    (name,) = argv
    host, device = backend_for("cpu"), backend_for(name)
    registry.load()
    trust.refuse(known["lost"])
    write(started=1)
    for unit, check in units():
        if unit in known["units"] or (unit == _NETWORK and GRAPHS in known["lost"]):
            continue
        answers: dict[tuple[str, str], str] = {}
        try:
            answers = check(host, device, lambda names: write(running=names))
        except Exception as error:
            failure = device_error(error)
            if lost() is not None:
                write(failed=str(failure or error).partition(";")[0])
                return 1
            traceback.print_exc()  # a row that is wrong itself: what it was to check stays unchecked
        write(unit=unit, answers=[[*key, reason] for key, reason in answers.items()])
    write(finished=1)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a device that is lost fails again while it is taken down
