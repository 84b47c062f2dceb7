"""A process for code as the API process sees it; what is at the other end of its connection may say anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from typing import Any

from opbox_protocol.errors import MXNetError
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.owner_terms import SCOPES
from opbox_service.routes.table import ROUTES
from opbox_service.worker.code_worker import CodeWorker

__all__ = ["COMMANDS", "ID", "OPENED", "SESSION", "CodePeer", "answer", "message"]

ID = "a" * 32
OPENED: dict[str, Any] = {"id": ID, "device": "cpu", "devices": ["cpu"], "ttl_s": 600.0, "limits": {"bytes": 1 << 20}}
SESSION, COMMANDS = f"/v1/sessions/{ID}", f"/v1/sessions/{ID}/commands"


def message(header: Any, body: bytes = b"") -> bytes:
    """A message's bytes."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + body


def answer(id: int, body: bytes = b"{}", **further: Any) -> bytes:
    """An honest answer to a call, but for what `further` says."""
    header = {"kind": "answer", "id": id, "status": 200, "header_length": None, "commands": 1, "size": len(body)}
    return message({**header, "segment": None, "sessions": 1, "queue": None, **further}, body)


class CodePeer(CodeWorker):
    """The supervisor of a process that sleeps, with a session of ann's. The test speaks for the process.

    Attributes:
        peer: the process's end of the connection.
    """

    peer: socket.socket

    async def _spawn(self) -> subprocess.Popen[bytes]:
        self.peer = self._open_channel()
        process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        self._output.started()
        return process

    async def open(self) -> None:
        """Start, and have the session."""
        self.begin()
        await asyncio.sleep(0)
        self.say(message({"kind": "ready", "pid": 1}))
        await self.up()
        self.whose, self.only_session, self.session, self.sessions = ("ann", "cpu"), ID, ID, 1

    def say(self, data: bytes, *fds: int) -> None:
        """Send bytes, with descriptors that this closes."""
        try:
            # It may have been ended for what was said before.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self.peer, [data], list(fds))
        finally:
            for fd in fds:
                os.close(fd)

    def ask(self, method: str = "POST", path: str = COMMANDS) -> asyncio.Future[RawResponse]:
        """Make a call to the session."""
        route, parameters = ROUTES.match(method, path)
        return self.call(RawRequest(route, parameters, path, "ann", SCOPES, "r", b"{}"), 60.0)

    async def heard(self) -> MXNetError | None:
        """Wait until all that was said is read; the error that the process was ended with, or None where it goes on."""
        asked = self.ask("GET", SESSION)
        self.say(answer(self.calls))
        try:
            (await asked).release()
        except MXNetError as error:
            await self.gone()
            return error
        return None

    async def close(self) -> None:
        """End the process, and remove what it had."""
        self.kill()
        await self.gone()
        await self._requests.finish(60.0)
        self.peer.close()
        await asyncio.to_thread(self.clean_up)
