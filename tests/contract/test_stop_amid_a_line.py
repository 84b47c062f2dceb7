"""A signal that comes while the server writes a line of its log, whose lock the interrupted thread then has."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

PROGRAM = """
import os, signal, sys
from opbox_service import logs
from opbox_service.serve import main

signals = [getattr(signal, name) for name in {names!r}]
write = logs.LogStream.write

def write_and_signal(self, text):
    write(self, text)
    while signals and "/v1/ops" in text:  # lines before it are of the start
        os.kill(os.getpid(), signals.pop(0))  # this thread's handler runs here, amid the line

logs.LogStream.write = write_and_signal
sys.exit(main(["--port", "0", "--isolation", "none", "--log-level", "info"]))
"""


@pytest.mark.parametrize(("names", "code"), [(["SIGTERM"], 0), (["SIGINT"], 0), (["SIGINT", "SIGINT"], 130)])
def test_it_stops(names: list[str], code: int) -> None:
    command = [sys.executable, "-c", PROGRAM.format(names=names)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        try:
            assert httpx.get(f"{url}/v1/ops").status_code == 401  # which is logged
            process.wait(30)
        finally:
            process.kill()
    assert process.returncode == code
