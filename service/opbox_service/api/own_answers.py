"""OwnAnswers: the answers of routes that the API process serves itself, without a worker."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Protocol

from opbox_protocol.errors import ForbiddenError, LimitError, MXNetError

from ..buffers import INLINE
from ..carriers import Answer, Call, RawRequest, RawResponse
from ..codec import lay_out, limits_of, read
from ..routes.health import Place
from ..settings import Settings
from ..worker.pool import WorkerPool
from .encodings import in_thread
from .request_context import Scope

__all__ = ["ApiState", "OwnAnswers", "check_local"]


class ApiState(Place, Protocol):
    """The parts of the API process that the endpoint and the middleware use."""

    stopping: bool
    stop_by: float | None

    @property
    def pool(self) -> WorkerPool:
        """The pool of workers that runs calls."""


class OwnAnswers:
    """Serves the routes that need no worker.

    Args:
        server: the API process, which the routes' handlers work on.
        settings: the limits.
    """

    def __init__(self, server: ApiState, settings: Settings) -> None:
        self._server = server
        self._settings = settings
        self._limits = limits_of(settings)

    def at_once(self, request: RawRequest) -> RawResponse:
        """The answer of a route that has no body."""
        answers: list[Answer | BaseException] = []
        call = Call(request.route, request.parameters, owner=request.owner, scopes=request.scopes)
        try:
            request.route.handler(self._server, call, answers.append)
        except MXNetError as error:
            answers.append(error)
        return lay_out(answers[0], request, self._settings)

    async def from_body(self, request: RawRequest) -> RawResponse:
        """The answer of a route that takes its time, from the request's body."""
        answered: asyncio.Future[Answer | BaseException] = asyncio.get_running_loop().create_future()
        begun = False
        try:
            size = len(request.view)
            # JSON is read by the loop, which others wait for; tensors are views, whatever their size.
            size = min(size, request.header_length or size) if request.route.tensors else size
            if size <= INLINE:
                call = read(request, self._limits, self._settings)
            elif request.route.large:
                call = await in_thread(lambda: read(request, self._limits, self._settings))
            else:
                raise LimitError(f"body: expected at most {INLINE} bytes of JSON, got {size}: send less")
            request.route.handler(self._server, call, answered.set_result)
            begun = True
            return lay_out(await answered, request, self._settings)
        except MXNetError as error:
            return lay_out(error, request, self._settings)
        finally:
            if begun:
                answered.add_done_callback(lambda _: request.release())  # its work has the body until then
            else:
                request.release()


def check_local(scope: Scope) -> None:
    """Raise ForbiddenError for a client on another machine. One without an address came by a socket of this one."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    if address and not ipaddress.ip_address(address).is_loopback:
        raise ForbiddenError(
            f"{scope['method']} {scope['path']}: expected a client on the server's machine, got one at {address}: send "
            "tensors as bytes"
        )
