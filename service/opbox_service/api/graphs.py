"""Graphs: kept by content, inferred, run forward and backward."""

from __future__ import annotations

from fastapi import APIRouter, Request

from . import documents as d
from .through import Through

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["graphs"])


@router.put("/graphs", **d.documented(d.GraphRequest, d.GraphAnswer, 400, 413))
async def put_graph(request: Request) -> Through:
    """Send a graph once; other calls may then name it `sha256:<hex>`."""
    return Through(request)


@router.post("/infer_shape", **d.documented(d.ShapesRequest, d.ShapesAnswer, 400, 404, 413, 422))
async def infer_shape(request: Request) -> Through:
    """Infer the shapes of arguments, outputs and auxiliary states, in both directions."""
    return Through(request)


@router.post("/infer_type", **d.documented(d.TypesRequest, d.TypesAnswer, 400, 404, 413, 422))
async def infer_type(request: Request) -> Through:
    """Infer the element types of arguments, outputs and auxiliary states."""
    return Through(request)


_RUN = (400, 404, 413, 422, 501, 504)


@router.post("/forward", **d.documented(d.ForwardRequest, d.TensorsAnswer, *_RUN, framed=True))
async def forward(request: Request) -> Through:
    """Run a graph on the given tensors; its outputs."""
    return Through(request)


@router.post("/backward", **d.documented(d.BackwardRequest, d.TensorsAnswer, *_RUN, framed=True))
async def backward(request: Request) -> Through:
    """Run a graph forward and backward; its outputs and the gradients of its arguments."""
    return Through(request)
