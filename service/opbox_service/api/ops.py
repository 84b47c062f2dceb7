"""The catalogue of operators."""

from __future__ import annotations

from fastapi import APIRouter, Request

from . import documents as d
from .through import Through

__all__ = ["router"]

router = APIRouter(prefix="/v1/ops", tags=["operators"])


@router.get("", **d.documented(None, d.Catalogue))
async def ops(request: Request) -> Through:
    """All operators: names, inputs, outputs, JSON Schema of the parameters."""
    return Through(request)


@router.get("/{name}", **d.documented(None, d.Operator, 404))
async def op(request: Request, name: str) -> Through:
    """One operator, by name or alias."""
    return Through(request)
