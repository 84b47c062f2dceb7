"""Sessions that move from a shared worker to a process of their own, as the API process sees it.

A worker sends the image of a session when code has come for it. A process for code goes on with it, or the worker does,
with an error for the batch that brought the code. Calls for the session wait meanwhile, and go where it is then.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from opbox_protocol import routes
from opbox_protocol.errors import GoneError, InternalError, MXNetError, NotReadyError

from ..buffers import Lease
from ..carriers import RawRequest
from ..owner_terms import SCOPES
from ..routes.table import ROUTES
from ..sealed_files import Descriptor
from .code_worker import CodeWorker
from .code_workers import CodeWorkers
from .worker import Worker

__all__ = ["SessionMoves", "carry"]

PAUSE_S = 0.02
"""Seconds before a call to a moving session is repeated."""

_log = structlog.get_logger("opbox.code")


class SessionMoves:
    """Moves sessions from shared workers to processes of their own.

    Args:
        code: has processes for sessions with code.
        owner_of: the owner of a session that a shared worker has; None when it has ended.
        moved: called when a session has a process of its own.
        call: makes a call.
        spawn: runs a coroutine.
    """

    def __init__(
        self,
        code: CodeWorkers,
        owner_of: Callable[[str, Worker], str | None],
        moved: Callable[[str], None],
        call: Callable[[RawRequest], Coroutine[Any, Any, Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._code = code
        self._owner_of = owner_of
        self._moved = moved
        self._call = call
        self._spawn = spawn
        self._moves: dict[str, tuple[Worker, asyncio.Future[None]]] = {}
        self._left: dict[str, asyncio.Future[None]] = {}

    def take(self, worker: Worker, header: dict[str, Any], descriptor: Descriptor) -> None:
        """Handle a worker's message about a session that moves."""
        kind = header["kind"]
        if kind == "move":
            if not descriptor:
                few = NotReadyError("the session's own process: the server has no more files to open: try again later")
                worker.session_stays(header["session"], few)
                return
            image = descriptor.take()
            self._moves[header["session"]] = worker, asyncio.get_running_loop().create_future()
            self._spawn(self._move(worker, header, image))
        elif kind == "left" and header["session"] in self._left:
            _resolve(self._left.pop(header["session"]))
        elif kind == "void":
            request: RawRequest = header["request"]
            self._spawn(self._fill(request.parameters["id"], request.owner, header["seq"]))

    def worker_ended(self, worker: Worker) -> None:
        """Release the calls that wait for moves of a worker that has ended."""
        for id in [id for id, (source, _) in self._moves.items() if source is worker]:
            self._end(id)

    async def settled(self, id: str) -> None:
        """Wait while a session moves."""
        while id in self._moves:
            await asyncio.shield(self._moves[id][1])

    async def settle(self, id: str, request: RawRequest, seq: int | None) -> None:
        """Wait for the end of a move that a call met with; what the call was stopped with meanwhile, this raises."""
        stopped: list[MXNetError] = []
        request.cancel = stopped.append
        if id not in self._moves:
            # The worker's answers to calls may be faster than the image, and slower than the end of a move.
            await asyncio.sleep(PAUSE_S)
        await self.settled(id)
        if stopped:
            self._spawn(self._fill(id, request.owner, seq))
            raise stopped[0]

    def _end(self, id: str) -> None:
        _, future = self._moves.pop(id, (None, None))
        if future is not None:
            _resolve(future)
        left = self._left.pop(id, None)
        if left is not None:
            _resolve(left)

    async def _move(self, worker: Worker, header: dict[str, Any], image: int) -> None:
        id = header["session"]
        try:
            owner = self._owner_of(id, worker)
            if owner is None:
                return
            request = _request("POST", routes.SESSIONS, owner)
            own = await self._code.adopt(request, id, header["device"], header["bytes"], image)
            await self._hand_over(id, worker, own)
        except MXNetError as error:
            worker.session_stays(id, error)
        except Exception:
            _log.error("a session was not moved", session=id, exc_info=True)
            worker.session_stays(id, InternalError("the session's own process: the server's log has the reason"))
        finally:
            os.close(image)
            self._end(id)

    async def _hand_over(self, id: str, worker: Worker, own: CodeWorker) -> None:
        """Tell the old worker to drop a session that has moved."""
        if self._owner_of(id, worker) is None:  # it ended meanwhile, and its owner knows why
            self._code.forget(id)
            own.retire(f"session {id} is gone: make a new one")
            return
        self._moved(id)
        if worker.ready:
            left = self._left[id] = asyncio.get_running_loop().create_future()
            worker.session_moved(id)
            # What it had there is its owner's to use from here on.
            await left

    async def _fill(self, id: str, owner: str, seq: int | None) -> None:
        """Send an empty batch for one whose client is gone, so that later batches can run."""
        if seq is None:
            return
        await self.settled(id)
        request = _request("POST", routes.COMMANDS, owner, id)
        request.body = json.dumps({"seq": seq, "commands": []}).encode()
        try:
            (await self._call(request)).release()
        except (MXNetError, GoneError):
            return  # it has ended


def carry(request: RawRequest, worker: Worker) -> None:
    """Copy a request's body to where the new worker can read it.

    Raises:
        NotReadyError: there is no buffer for it.
    """
    if isinstance(request.body, Lease) and request.worker is not worker:
        before = request.body
        lease = worker.lease(len(before.view))
        lease.view[:] = before.view
        before.release()
        request.body, request.worker = lease, worker


def _request(method: str, path: str, owner: str, id: str = "") -> RawRequest:
    """A request of the API process's own, for an owner's session."""
    filled = path.format(id=id)
    route, parameters = ROUTES.match(method, filled)
    return RawRequest(route, parameters, filled, owner, SCOPES, "move")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
