"""A server that is killed while compilers run for it: nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS"]

PATIENCE_S = 40.0
PROGRAM = """
import sys
from opbox_ops.cpu.runtime import c_compiler
text = '#if __INCLUDE_LEVEL__ < 150\\\\n#include LOOP\\\\n#include LOOP\\\\n#endif\\\\n'
open(sys.argv[1], 'w').write(text.replace('LOOP', '"' + sys.argv[1] + '"'))
c_compiler.compiled_function('#include "' + sys.argv[1] + '"', 'f')
"""


def kill(box: Box) -> Outcome:
    """The worker's part alone: a process that compiles a text without an end, as a worker does, and is killed."""
    with tempfile.TemporaryDirectory() as place:
        worker = subprocess.Popen(
            [str(box.live.process.args[0]), "-c", PROGRAM.replace("\\\\", "\\"), str(Path(place, "loop.h"))],  # type: ignore[index]
            env={**os.environ, "OPBOX_CACHE_DIR": place, "OPBOX_C_KERNELS": "now"},
        )
        until = time.monotonic() + PATIENCE_S
        while not (compilers := _compilers(place)) and time.monotonic() < until:
            time.sleep(0.05)
        worker.kill()
        worker.wait()
        until = time.monotonic() + 2
        while _compilers(place) and time.monotonic() < until:
            time.sleep(0.05)
        left = _compilers(place)
        for process in left:
            process.send_signal(signal.SIGKILL)
    return Outcome(bool(compilers) and not left, f"{len(left)} of {len(compilers)} compilers went on")


def _compilers(place: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(os.path.join(place, "kernels")) and process.name() in (
                "cc1",
                "clang",
                "cc1plus",
            ):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


ATTACKS = [Attack("compilers", "a process killed while a C text without an end is compiled", kill)]
