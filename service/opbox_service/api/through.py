"""How a documented route reaches the endpoint: a response that, when it is sent, serves the request."""

from __future__ import annotations

from fastapi import Request, Response

from .endpoint import Endpoint, Receive, Scope, Send

__all__ = ["Through"]


class Through(Response):
    """Serves `request` by the app's endpoint."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._endpoint: Endpoint = request.app.state.endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)
