"""Health, the server's name, and its metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from opbox_protocol.errors import NotReadyError

from . import documents as d

__all__ = ["router"]

router = APIRouter(tags=["health"])


class Live(BaseModel):
    live: bool


class Ready(BaseModel):
    ready: bool


class About(BaseModel):
    name: str
    version: str
    extensions: list[str]


@router.get("/v2/health/live")
async def live() -> Live:
    """Whether the server runs. Needs no token."""
    return Live(live=True)


@router.get("/v2/health/ready", responses={503: {"model": d.Error, "description": "Starting or stopping."}})
async def ready(request: Request) -> Ready:
    """Whether calls can be taken: false as soon as the server begins to stop."""
    if not request.app.state.is_ready():
        raise NotReadyError("the server is starting or stopping: try again in a moment")
    return Ready(ready=True)


@router.get("/v2")
async def about() -> About:
    """The server's name, version and extensions, as the Open Inference Protocol has them."""
    return About(name="opbox", version=version("opbox-service"), extensions=["binary_tensor_data"])


_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", responses=_TEXT, response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
