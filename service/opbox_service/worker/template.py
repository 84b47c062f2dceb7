"""The template process as the API process sees it: asked for code processes, and for how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

import structlog

from opbox_protocol.errors import NotReadyError

from . import messages
from .channel import Channel

__all__ = ["ForkedProcess", "Template"]

PROGRAM = "opbox_service.worker.code_template"
START_S = 120.0
"""Seconds that it may take to load all modules."""
FORK_S = 30.0
"""Seconds that a fork may take on a machine that is very busy."""

_log = structlog.get_logger("opbox.code")


class ForkedProcess:
    """A process that the template has forked: what `subprocess.Popen` is to one that this process has started.

    Attributes:
        pid: its process id, which stays its own until `reap`.
    """

    def __init__(self, template: Template, pid: int) -> None:
        self.pid = pid
        self._template = template
        self._pidfd = os.pidfd_open(pid)
        self._ended = False

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens when it has ended."""
        if not self._ended:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def reap(self, ended: Callable[[int], None]) -> None:
        """Call `ended` with its exit status, negative for a signal's number; it has ended, or will in a moment."""
        self._ended = True
        os.close(self._pidfd)
        self._template.reap(self.pid, ended)


class Template:
    """A template process.

    Args:
        environment: the variables of the processes that it forks, without tokens.
        on_end: called when it has ended; its processes end with it.

    Attributes:
        ended: whether it has.
        reason: why it could not begin, where it has not.

    Raises:
        OSError: the system has no room for a process.
    """

    def __init__(self, environment: Mapping[str, str], on_end: Callable[[Template], None]) -> None:
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._reaped: dict[int, Callable[[int], None]] = {}
        self.ended = False
        self.reason = "it ended before it had loaded all modules"
        self._channel, theirs = Channel.pair(self._take, self._refuse, self._end)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=dict(environment),
                    cwd="/",
                )
        except OSError:
            self._channel.close()
            raise
        self._channel.read()

    @property
    def has_begun(self) -> bool:
        """True if it has loaded all modules, and could fork."""
        return self._ready.done() and self._ready.exception() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def fork(self, folder: str, fds: tuple[int, ...]) -> ForkedProcess:
        """Return a process that works in `folder` and has these descriptors, see `code_template`.

        Raises:
            NotReadyError: there is none to be had; why.
        """
        async with asyncio.timeout(START_S):
            await asyncio.shield(self._ready)
        number = next(self._numbers)
        forked = self._forks[number] = self._loop.create_future()
        self._channel.send(messages.write({"kind": "fork", "id": number, "folder": folder}), fds)
        try:
            async with asyncio.timeout(FORK_S):
                return ForkedProcess(self, await asyncio.shield(forked))
        except TimeoutError:
            self.kill()
            raise NotReadyError(f"the template process did not fork within {FORK_S:g} s") from None

    def reap(self, pid: int, ended: Callable[[int], None]) -> None:
        """See ForkedProcess.reap."""
        if self.ended:
            ended(-signal.SIGKILL)
            return
        self._reaped[pid] = ended
        self._channel.send(messages.write({"kind": "reap", "pid": pid}))

    def kill(self) -> None:
        """End it, and its processes with it."""
        if not self.ended:
            self._process.kill()
            self._end()

    def _take(self, message: bytes, fd: int | None) -> None:
        header, _ = messages.read(message)
        if header["kind"] == "ready":
            self._ready.set_result(None)
        elif header["kind"] == "reaped":
            self._reaped.pop(header["pid"])(header["code"])
        elif header["kind"] == "failed" and not self._ready.done():
            self.reason = header["reason"]
            self._ready.set_exception(NotReadyError(f"the template process: {self.reason}"))
        else:
            forked = self._forks.pop(header["id"])
            if header["kind"] == "failed":
                forked.set_exception(NotReadyError(f"the template process: {header['reason']}"))
            else:
                forked.set_result(header["pid"])

    def _refuse(self, error: Exception) -> None:
        _log.error("the template process sent what is no message; ending it", pid=self.pid, exc_info=error)
        self.kill()

    def _end(self) -> None:
        """It has ended, or is of no use any more."""
        if self.ended:
            return
        self.ended = True
        self._channel.close()
        self._process.kill()
        self._process.wait()
        error = NotReadyError("the template process has ended: try again in a moment")
        if not self._ready.done():
            self._ready.set_exception(error)
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(error)
        reaped, self._reaped = self._reaped, {}
        for ended in reaped.values():
            ended(-signal.SIGKILL)
        self._on_end(self)
