"""The program of the template process: it has loaded all that code processes run, and forks one whenever it is asked.

    python -m opbox_service.worker.code_template SOCKET PARENT

A process that begins with Python alone takes a second of processor time until it serves a session; one that is forked
takes some milliseconds, and shares the memory of what has been loaded. The template knows no settings, tokens or
requests, and has no thread: a thread's locks would stay closed in what is forked. What is forked confines itself as
any code process does (`code_process`), before it runs anything of a session's.

Messages, one JSON object each (`messages`): `fork` with the process's folder and its descriptors is answered by
`forked` with its process id, or `failed`; `reap` with a process id, once that has ended, by `reaped` with its status.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import numpy as np

from . import code_process, messages
from .confine import die_with, keep_modules_reachable, refuse_dumps

__all__ = ["main"]

LOADED = (
    "opbox_service.worker.process",
    "opbox_service.custom.local_session",
    "opbox_ops.cpu.onednn.library",
    "opbox_ops.cpu.runtime.c_compiler",
    "concurrent.futures.thread",
)
"""Modules that a code process needs for its first session, with all that they import."""
FDS = 4
"""Descriptors of a process: its connection, its progress, the stack of a crash, and its output."""


def main(argv: list[str]) -> None:
    """Load, then fork until the connection ends."""
    sock = socket.socket(fileno=int(argv[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    refuse_dumps()
    die_with(int(argv[1]))
    os.register_at_fork(after_in_child=sock.close)
    if os.geteuid() == 0:  # processes take on other users, who find files by these names alone
        keep_modules_reachable()
    try:
        for name in LOADED:
            import_module(name)
        registry = import_module("opbox_ops.registry")
        registry.load()
        _end_threads_of_blas()
        why = _why_not()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        messages.send(sock, messages.write({"kind": "failed", "id": 0, "reason": why[:2000]}))
        return
    gc.collect()
    gc.freeze()  # so that no collection writes to the memory that is shared
    messages.send(sock, messages.write({"kind": "ready"}))
    while True:
        text, fds, _, _ = socket.recv_fds(sock, messages.LARGEST, FDS)
        if not text:
            return
        header, _ = messages.read(text)
        if header["kind"] == "reap":
            _, status = os.waitpid(header["pid"], 0)
            answer = {"kind": "reaped", "pid": header["pid"], "code": os.waitstatus_to_exitcode(status)}
        else:
            answer = {"id": header["id"], **_fork(header, fds)}
            for fd in fds:
                os.close(fd)
        messages.send(sock, messages.write(answer))


def _why_not() -> str:
    """Return why this process may not be forked; "" when it may."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"expected no thread but the first, got {len(threads)} of them"
    # CUDA does not outlive a fork, and CuPy's import may begin with it.
    return "expected CuPy not to be loaded" if "cupy" in sys.modules else ""


def _end_threads_of_blas() -> None:
    """End the threads that OpenBLAS starts when it is loaded; it starts them again for the first product."""
    for path in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(str(path)).blas_thread_shutdown_()


def _fork(header: dict[str, object], fds: list[int]) -> dict[str, object]:
    why = _why_not()
    if why or len(fds) != FDS:
        return {"kind": "failed", "reason": why or f"expected {FDS} descriptors, got {len(fds)}"}
    template = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return {"kind": "failed", "reason": str(error)}
    if not pid:
        _serve(str(header["folder"]), fds, template)
    return {"kind": "forked", "pid": pid}


def _serve(folder: str, fds: list[int], template: int) -> NoReturn:
    """Be the process of a session; this function does not return."""
    code = 1
    try:
        connection, page, trace, output = fds
        os.setsid()
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.chdir(folder)
        os.environ.update(code_process.homes(folder))
        tempfile.tempdir = None
        # `random` and `secrets` draw anew by themselves.
        np.random.seed()
        code_process.main([str(connection), str(page), str(trace)], template)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
