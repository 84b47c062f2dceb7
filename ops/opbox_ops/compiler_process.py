"""Runs a compiler in bounded time; none of its processes outlives it, or the process that runs it, however that ends.

    run_compiler(["gcc", "-x", "c", "-", "-o", "a.so"], text=b"int x;", folder="/tmp/mine", seconds=60)

A compiler's program only starts others: `gcc` starts `cc1` and `as`. To kill the first leaves these running. They are
one process group here. Its first member is a shell that reads a pipe, whose other end this process has and writes
nothing to: when this process has ended, the shell kills the group.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["run_compiler"]


def run_compiler(
    command: Sequence[str],
    *,
    folder: str | Path,
    seconds: float,
    text: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a compiler to its end, and return its exit status, its output and its errors.

    Args:
        command: the program and its arguments.
        folder: in which it works, with its own temporary files.
        seconds: that it may take.
        text: its standard input.
        environment: variables beyond this process's.

    Raises:
        subprocess.TimeoutExpired: it took longer; none of its processes runs any more.
        OSError: it cannot be started.
    """
    shell = shutil.which("sh")
    reading, writing = os.pipe()
    watcher = None
    try:
        watcher = None if shell is None else _watcher(shell, reading)
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **(environment or {}), "TMPDIR": str(folder)},
            process_group=0 if watcher is None else watcher.pid,
        ) as process:
            try:
                output, errors = process.communicate(text, seconds)
            except BaseException:
                _end(process.pid if watcher is None else watcher.pid)
                raise
    finally:
        if watcher is not None:
            _end(watcher.pid)  # until it is waited for, the group's number is no other's
            watcher.wait()
        os.close(reading)
        os.close(writing)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _watcher(shell: str, reading: int) -> subprocess.Popen[bytes]:
    """The group's first member, which kills it when the pipe's other end is closed."""
    return subprocess.Popen(
        [shell, "-c", "read -r word; kill -9 0"],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def _end(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
