"""The OpenAPI document, from the table of routes: FastAPI writes it, and serves nothing."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from opbox_protocol.wire import HEADER_LENGTH

from ..routes.models import Error
from ..routes.route import Route, RouteTable
from .examples import EXAMPLES

__all__ = ["document"]

FRAME = (
    f"A frame: the JSON object, padded with spaces to a multiple of 64 bytes ({HEADER_LENGTH} is its length), then the "
    "tensors' bytes, little-endian and row-major, each from a 64-byte boundary on."
)
BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "description": FRAME}}}
STATUSES = {
    400: "Malformed, or unknown names.",
    401: "No token, or a wrong one.",
    403: "A token without the scope.",
    404: "Not there, or not yours.",
    409: "An id or seq that is taken.",
    410: "A session that has ended.",
    413: "Larger than a limit.",
    415: "A Content-Encoding that the server does not take.",
    422: "Shapes or types that do not fit.",
    424: "Another worker of the session's group has ended.",
    429: "More than the owner may have.",
    499: "Cancelled by request.",
    500: "An error of the server's own.",
    501: "Not supported here.",
    503: "Busy, starting, stopping, or a worker that ended.",
    504: "It took too long.",
    507: "No room for a checkpoint, in the owner's quota or on the disk, or no memory, as the system says.",
}


def document(routes: RouteTable) -> dict[str, Any]:
    """The document, with the bodies that FastAPI does not read and the token that it does not check."""
    schema = get_openapi(
        title="opbox",
        version=version("opbox-service"),
        summary="Neural-network operators over HTTP.",
        routes=_router(routes).routes,
    )
    requests = {route.request for route in routes if route.request is not None}
    models = sorted(requests, key=lambda model: model.__name__)
    _, bodies = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    components = schema.setdefault("components", {})
    components["schemas"] = {**bodies["$defs"], **components.get("schemas", {})}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    # Relative to the document's own address: a proxy may have put the server under a path.
    schema["servers"] = [{"url": ".", "description": "The server that this document comes from."}]
    schema["security"] = [{"token": []}]
    for route in routes:
        if not route.token and route.documented:
            schema["paths"][route.path][route.method.lower()]["security"] = []
    return schema


def _router(routes: RouteTable) -> APIRouter:
    """The routes, as FastAPI documents them; calls go to the endpoint without it."""
    router = APIRouter()
    for route in routes:
        if not route.documented:
            continue
        description = route.handler.__doc__ or ""
        router.add_api_route(
            route.path,
            _undispatched,
            methods=[route.method],
            name=route.operation_id,
            operation_id=route.operation_id,
            summary=description.partition(". ")[0].removesuffix("."),
            description=description,
            tags=[route.tag],
            status_code=route.status,
            response_model=None,
            responses=_responses(route),
            openapi_extra=_request(route),
        )
    return router


async def _undispatched() -> None:
    """Stands in for the handlers, whose signatures are not FastAPI's."""
    raise NotImplementedError


def _responses(route: Route) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route."""
    success: dict[str, Any] = {"description": "Done."}
    if route.answer is not None:
        success["model"] = route.answer
    text = {route.media_type: {"schema": {"type": "string"}}} if route.answer is None else {}
    content: dict[str, Any] = {**(BINARY if route.tensors else {}), **text}
    if content:
        success["content"] = content
    example = EXAMPLES.get((route.method, route.path))
    if example is not None and example.answer is not None:
        success.setdefault("content", {}).setdefault("application/json", {})["example"] = example.answer
    responses: dict[int | str, dict[str, Any]] = {route.status: success}
    if route.accepted is not None:
        responses[202] = {"model": route.accepted, "description": "Taken; it runs in its turn."}
    everywhere = (401, 429, 500, 503) if route.token else (429, 500, 503)
    further = (*((403,) if route.scopes else ()), *((415,) if route.request is not None else ()), *route.errors)
    for status in sorted({*everywhere, *further}):
        responses[status] = {"model": Error, "description": STATUSES[status]}
    return responses


def _request(route: Route) -> dict[str, Any]:
    """Return the OpenAPI request of a route: its body, and the parameters in its path."""
    parameters: list[dict[str, Any]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in route.path.split("/")
        if part.startswith("{")
    ]
    extra: dict[str, Any] = {}
    if route.request is not None:
        json: dict[str, Any] = {"schema": _reference(route.request)}
        example = EXAMPLES.get((route.method, route.path))
        if example is not None:
            json["example"] = example.request
        content = {"application/json": json, **(BINARY if route.tensors else {})}
        required = bool(route.request.model_json_schema().get("required"))
        extra["requestBody"] = {"required": required, "content": content}
    if route.tensors:
        parameters.append(
            {
                "name": HEADER_LENGTH,
                "in": "header",
                "required": False,
                "schema": {"type": "integer"},
                "description": "Bytes of the JSON part; without it the whole body is JSON.",
            }
        )
    if parameters:
        extra["parameters"] = parameters
    return extra


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
