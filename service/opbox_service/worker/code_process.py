"""The program of a code worker's process: it confines itself, then serves calls like any other worker.

    python -m opbox_service.worker.code_process SOCKET PROGRESS TRACE

The descriptors: its connection, the page where it writes its progress, and a file for the stack of a crash.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
from pathlib import Path

from . import messages
from .confine import Bounds, at_hand, confine, keep_apart, reachable
from .progress import Progress

__all__ = ["homes", "main"]


def homes(folder: str) -> dict[str, str]:
    """The variables that name a code process's own folder."""
    return dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "CUPY_CACHE_DIR"), folder)


def main(argv: list[str], parent: int | None = None) -> None:
    """Confine this process, then serve calls.

    Args:
        argv: its descriptors.
        parent: the process that forked it; None where the server has started it.
    """
    sock, page, trace = socket.socket(fileno=int(argv[0])), int(argv[1]), int(argv[2])
    message, _ = messages.receive(sock)
    if not message:
        return
    header, text = messages.read(message)
    settings = json.loads(bytes(text))
    try:
        if header["bounds"]["user"]:
            settings["ops"] = [at_hand(path, header["bounds"]["folder"]) for path in settings["ops"]]
        # Opened while this process still enters every folder.
        opened = reachable if header["bounds"]["user"] else str
        kernels, library = (
            path if path is None else Path(opened(path)) for path in (header["kernels"], header["onednn"])
        )
        bounds = Bounds(**header["bounds"])
        sock = socket.socket(fileno=keep_apart(sock.detach(), bounds.open_files))
        confine(bounds, sock.fileno())
        if parent is not None and os.getppid() != parent:
            return  # it ended before it could take this process with it
        from opbox_ops.cpu.onednn import library as onednn
        from opbox_ops.cpu.runtime import c_compiler  # numpy's threads are to be confined as well

        from .process import run

        if library is not None:
            onednn.use(library)

        c_compiler.read_only(kernels, header["maker"])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:2000]
        messages.send(sock, messages.write({"kind": "failed", "reason": reason}))
        raise SystemExit(1) from None
    # What its code forks must not answer for it.
    os.register_at_fork(after_in_child=sock.close)
    for fd in (sock.fileno(), page, trace):
        os.set_inheritable(fd, False)
    faulthandler.enable(file=trace)
    faulthandler.register(signal.SIGUSR1, file=trace)
    run(sock, settings, Progress(page))


if __name__ == "__main__":
    main(sys.argv[1:])
