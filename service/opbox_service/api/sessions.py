"""Sessions: a device stream carried by HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request

from . import documents as d
from .through import Through

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.post("", **d.documented(d.SessionRequest, d.SessionAnswer, 400, 403, 501, status=201))
async def create(request: Request) -> Through:
    """Open a session on a device."""
    return Through(request)


@router.get("", **d.documented(None, d.SessionList))
async def sessions(request: Request) -> Through:
    """Your sessions."""
    return Through(request)


@router.get("/{id}", **d.documented(None, d.Session, 404, 410))
async def session(request: Request, id: str) -> Through:
    """One session: its memory, its age, the batch that it waits for."""
    return Through(request)


@router.delete("/{id}", **d.documented(None, d.Deleted, 404, 410))
async def delete(request: Request, id: str) -> Through:
    """End a session; all that it held is freed."""
    return Through(request)


@router.post(
    "/{id}/commands",
    **d.documented(
        d.CommandsRequest,
        d.CommandsAnswer,
        *(400, 404, 409, 410, 413, 422, 501, 504),
        framed=True,
        accepted=d.Accepted,
    ),
)
async def commands(request: Request, id: str) -> Through:
    """Run a batch of commands in its turn; what it fetches. The first error stops it."""
    return Through(request)
