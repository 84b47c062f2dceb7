"""The worker process: hosts an engine, takes calls from the API process until that closes the connection.

    python -m opbox_service.worker.process FD

Its threads all wait on one socket and whichever is free takes the next message, so a call is handed over once, not
twice. A call whose batch must wait for another leaves its thread; the thread that ends the other batch answers it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any

import structlog

from opbox_protocol.errors import MXNetError, NotReadyError, error_to_json

from ..buffers import Lease, Pool, map_shared
from ..engine import Engine
from ..frames import Framed, Laid, limits_of, serve
from ..logs import configure
from ..session.custody import Custody
from ..settings import Settings
from . import messages
from .memory import tune_allocator
from .progress import Progress

__all__ = ["main", "run"]

_log = structlog.get_logger("opbox.worker")


class Process:
    """The worker's side of the connection.

    Args:
        progress: where commands are told; None in a worker that sessions share, which takes no code.
    """

    def __init__(self, sock: socket.socket, settings: Settings, progress: Progress | None = None) -> None:
        self._sock = sock
        self._settings = settings
        self._progress = progress
        self._limits = limits_of(settings)
        self._engine = Engine(settings, Custody(progress) if progress is not None else Custody(takes_code=False))
        self._requests: dict[int, memoryview] = {}
        self._answers = Pool(shared=True, limit=1 << 62, keep=settings.buffer_cache_bytes)
        self._lent: dict[int, Lease] = {}
        self._sessions_told = 0

    def run(self) -> None:
        """Serve until the API process closes its end."""
        threads = [
            threading.Thread(target=self._take_calls, name=f"opbox-call-{i}", daemon=True)
            for i in range(self._settings.threads)
        ]
        for thread in threads:
            thread.start()
        messages.send(self._sock, messages.write({"kind": "ready", "pid": os.getpid()}))
        self._wait_for_the_end()
        for thread in threads:
            thread.join(self._settings.stop_grace_s)
        self._engine.close()

    def _wait_for_the_end(self) -> None:
        poll = select.poll()
        poll.register(self._sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
        while not poll.poll(1_000):
            if self._progress is not None:
                self._progress.beat()
            dropped, held = self._answers.sweep(), len(self._engine.sessions)
            if dropped or held != self._sessions_told:
                self._sessions_told = held
                self._tell({"kind": "drop", "segments": dropped, "sessions": held})

    def _take_calls(self) -> None:
        while True:
            try:
                message, fd = messages.receive(self._sock)
            except OSError:
                return
            if not message:
                return
            told, inline = messages.read(message)
            if told["kind"] == "call":
                try:
                    self._call(told, inline, fd)
                except Exception as error:
                    # Code of a session's own may have used up what answers take, as the places for open files.
                    self._fail(told["id"], error)
            elif told["kind"] == "release":
                lease = self._lent.pop(told["segment"], None)
                if lease is not None:
                    lease.release()
            elif told["kind"] == "drop":
                for number in told["segments"]:
                    self._requests.pop(number, None)

    def _fail(self, id: int, error: Exception) -> None:
        if not isinstance(error, MXNetError):
            _log.error("a call failed", exc_info=error)
        status, header = error_to_json(error)
        self._answer(id, Laid(status, json.dumps(header).encode(), []))

    def _call(self, told: dict[str, Any], inline: memoryview, fd: int | None) -> None:
        body = inline
        if told["segment"] is not None:
            if fd is not None:
                self._requests[told["segment"]] = map_shared(fd)
            if told["segment"] not in self._requests:
                raise NotReadyError(
                    "no more files can be opened in the session's process: close some, or make a new one"
                )
            body = self._requests[told["segment"]][: told["size"]]
        framed = Framed(
            told["method"],
            told["path"],
            told["owner"],
            frozenset(told["scopes"]),
            body,
            told["header_length"],
            told["binary"],
        )

        def send(laid: Laid) -> None:
            if laid.problem is not None:
                _log.error("internal error", request_id=told["rid"], exc_info=laid.problem)
            self._answer(told["id"], laid)

        rest = serve(self._engine, framed, self._limits, send)
        if rest is not None:
            rest()

    def _answer(self, id: int, laid: Laid) -> None:
        size = laid.size
        self._sessions_told = len(self._engine.sessions)
        answer = {
            "kind": "answer",
            "id": id,
            "status": laid.status,
            "header_length": laid.header_length,
            "commands": laid.commands,
            "size": size,
            "segment": None,
            "sessions": self._sessions_told,
        }
        if size <= messages.INLINE:
            self._tell(answer, b"".join([laid.head, *laid.buffers]))
            return
        try:
            lease = self._answers.lease(size)
        except NotReadyError as error:
            self._fail(id, error)
            return
        laid.write_to(lease.view)
        segment = lease.segment
        answer["segment"] = segment.number
        self._lent[segment.number] = lease
        fds = () if segment.sent or segment.fd is None else (segment.fd,)
        segment.sent = True
        self._tell(answer, fds=fds)

    def _tell(self, told: dict[str, Any], inline: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        try:
            messages.send(self._sock, messages.write(told, inline), fds)
        except OSError:
            # The API process is gone, and with it whoever waited.
            _log.debug("the answer has nobody to go to")


def main(argv: list[str]) -> None:
    """Run a worker over the socket whose descriptor is argv[0]; its first message has the settings."""
    sock = socket.socket(fileno=int(argv[0]))
    message, _ = messages.receive(sock)
    if message:
        run(sock, json.loads(bytes(messages.read(message)[1])))


def run(sock: socket.socket, told: dict[str, Any], progress: Progress | None = None) -> None:
    """Serve over a socket, with these settings, until the other side closes it; then end the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tune_allocator()
    settings = Settings.model_validate(told)
    configure(settings)
    try:
        process = Process(sock, settings, progress)
    except Exception as error:
        reason = str(error)
        if not isinstance(error, MXNetError):
            _log.error("the worker could not start", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
        messages.send(sock, messages.write({"kind": "failed", "reason": reason[:2000]}))
        raise SystemExit(1) from None
    process.run()
    # Threads that are still busy past the grace period end here.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
