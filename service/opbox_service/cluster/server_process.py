"""The server of a node: an unchanged `opbox serve` in a process of its own, started again whenever it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from opbox_protocol.errors import NotReadyError

from ..token_hashes import new_token

__all__ = ["TRUSTED", "ServerProcess", "server_environment", "with_proxies"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before a server that died is started again: doubled each time, until one has run for a while."""
STEADY_S = 60.0
START_S = 120.0
"""Maximum seconds of a start: on a busy machine, loading the operators takes most of a minute."""
TAIL_BYTES = 4096
TRUSTED = "OPBOX_TRUSTED_PROXIES"


def server_environment(own: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a node's server, without Ray's variables: code of users is none of Ray's business.

    Args:
        own: the environment of the node's actor.
        settings: variables that are set in addition; an empty one is left out.

    Example:
        >>> server_environment({"HOME": "/root", "RAY_AUTH_TOKEN": "secret"}, {"OPBOX_PORT": "8002"})
        {'HOME': '/root', 'OPBOX_PORT': '8002'}
    """
    environment = {key: value for key, value in own.items() if not key.startswith("RAY_")} | dict(settings)
    # Ray's workers have one thread for BLAS, which is no choice of the user's.
    if own.get("OMP_NUM_THREADS") == "1" and "RAY_JOB_ID" in own:
        environment.pop("OMP_NUM_THREADS", None)
    return {key: value for key, value in environment.items() if value != ""}


def with_proxies(own: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Return the value of OPBOX_TRUSTED_PROXIES with the proxies of both; "" where neither has any.

    Example:
        >>> with_proxies({TRUSTED: '["10.0.0.1"]'}, {TRUSTED: '["192.0.2.7"]'})
        '["10.0.0.1", "192.0.2.7"]'
    """
    texts = [text for text in (own.get(TRUSTED), settings.get(TRUSTED)) if text]
    try:
        return json.dumps([proxy for text in texts for proxy in json.loads(text)]) if texts else ""
    except (ValueError, TypeError):  # no list: the server says what it expected
        return texts[0]


class ServerProcess:
    """A node's server.

    Args:
        settings: environment variables of the server, such as OPBOX_NODE; empty ones are left out.
        folder: for its log, and for the runtime files of its own.

    Attributes:
        token: with every scope, known to this node alone.
        url: where it listens; None while it does not run.
        starts: how often it has been started.
        failure: why it does not run, in a sentence; "" if it does.

    Example:
        >>> server = ServerProcess({"OPBOX_PORT": "0"}, Path("/tmp/node"))  # doctest: +SKIP
        >>> await server.start(); server.url                                # doctest: +SKIP
        'http://127.0.0.1:40123'
    """

    def __init__(self, settings: Mapping[str, str], folder: Path) -> None:
        self.token = new_token()
        self.folder = folder
        self.url: str | None = None
        self.starts = 0
        self.failure = ""
        self._settings = {**settings, "OPBOX_TOKEN": self.token, "OPBOX_CLUSTER": ""}
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None if it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def log(self) -> Path:
        """The file of what the server writes to standard error."""
        return self.folder / "server.log"

    async def start(self) -> None:
        """Start the server, and watch it from now on; returns when it serves.

        Raises:
            NotReadyError: it ended before it served, or did not serve in time; it will be started again.
        """
        failure = await self._start()
        self._watch = asyncio.create_task(self._restart_for_ever())
        if failure:
            raise NotReadyError(failure)

    async def stop(self) -> None:
        """End the server: it answers what it has accepted first."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        process, self.url = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()

    async def _start(self) -> str:
        """Start it once; returns why it does not serve, or an empty text."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "opbox_service.cluster.tied_server",
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=server_environment(os.environ, self._settings),
            )
        self.failure = "the server is starting"
        try:
            line = await asyncio.wait_for(self._first_line(self._process), START_S)
        except TimeoutError:
            self._process.kill()
            line = ""
        if line.startswith("opbox serving on "):
            self.url, self.failure = line.split()[-1], ""
        else:
            code = await self._process.wait()
            self.failure = f"the server ended with status {code}: {self._last_words() or line or 'it said nothing'}"
        return self.failure

    async def _first_line(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None
        return (await process.stdout.readline()).decode(errors="replace").strip()

    async def _restart_for_ever(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stopping:
            began = time.monotonic()
            if self.url is not None and self._process is not None:
                assert self._process.stdout is not None
                while await self._process.stdout.read(TAIL_BYTES):
                    pass
                code = await self._process.wait()
                self.url = None
                self.failure = f"the server ended with status {code} and is started again: {self._last_words()}"
            if time.monotonic() - began > STEADY_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            if not self._stopping:
                await self._start()

    def _last_words(self) -> str:
        """The last line of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""
