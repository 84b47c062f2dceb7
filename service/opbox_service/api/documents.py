"""What the routes take and give, for OpenAPI. The engine reads requests itself; these models say what it reads.

A body is either JSON with the tensors' values in lists, or a frame: the same JSON followed by the tensors' bytes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.wire import HEADER_LENGTH

from ..session.commands import Commands, Graph

__all__ = [
    "REQUESTS",
    "Accepted",
    "BackwardRequest",
    "Catalogue",
    "CommandsAnswer",
    "CommandsRequest",
    "Deleted",
    "Error",
    "ForwardRequest",
    "GraphAnswer",
    "GraphRequest",
    "Operator",
    "Session",
    "SessionAnswer",
    "SessionList",
    "SessionRequest",
    "ShapesAnswer",
    "ShapesRequest",
    "TensorsAnswer",
    "TypesAnswer",
    "TypesRequest",
    "documented",
]

FRAME = (
    f"A frame: the JSON object, padded with spaces to a multiple of 64 bytes ({HEADER_LENGTH} is its length), then the "
    "tensors' bytes, little-endian and row-major, each from a 64-byte boundary on."
)
Shape = list[int] | None


class Tensor(BaseModel):
    """A tensor: its values under `data`, or behind the header (`parameters.binary_data_size` bytes)."""

    name: str
    shape: list[int]
    datatype: Literal[tuple(DATATYPES)]  # type: ignore[valid-type]
    data: list[Any] | None = None
    parameters: dict[str, int] | None = None


class Error(BaseModel):
    """What every failed request answers; `error` is one sentence."""

    error: str
    type: str = Field(description="The class of the error: ShapeError, NotFoundError, …")
    node: str | None = None
    request_id: str
    detail: dict[str, Any] = {}


class GraphRequest(BaseModel):
    graph: dict[str, Any] = Field(description="MXNet's symbol JSON, as an object.")


class GraphAnswer(BaseModel):
    sha256: str


class ShapesRequest(BaseModel):
    graph: Graph
    shapes: dict[str, Shape] = Field(default={}, description="By argument; -1 an unknown dimension, null all unknown.")
    partial: bool = Field(default=False, description="Leave unknown what the given shapes do not determine.")
    trace: bool = Field(default=False, description="Tell which rule learnt what, and what stayed unknown.")


class ShapesAnswer(BaseModel):
    arg_names: list[str]
    arg_shapes: list[Shape]
    out_names: list[str]
    out_shapes: list[Shape]
    aux_names: list[str]
    aux_shapes: list[Shape]
    complete: bool
    trace: list[dict[str, Any]] | None = None


class TypesRequest(BaseModel):
    graph: Graph
    types: dict[str, str | None] = Field(default={}, description="numpy's names by argument.")
    partial: bool = False


class TypesAnswer(BaseModel):
    arg_names: list[str]
    arg_types: list[str | None]
    out_names: list[str]
    out_types: list[str | None]
    aux_names: list[str]
    aux_types: list[str | None]
    complete: bool


class RunParameters(BaseModel):
    is_train: bool = Field(default=False, description="Training mode; backward runs in it unless told otherwise.")
    seed: int = 0
    device: str = Field(default="cpu", description="cpu, gpu, gpu:1")
    tensor_alignment: Literal[64] | None = Field(default=None, description="Of a frame whose tensors are aligned.")


class BackwardParameters(RunParameters):
    grads: list[str] | None = Field(default=None, description="The arguments wanted; all by default.")


class ForwardRequest(BaseModel):
    graph: Graph
    inputs: list[Tensor] = Field(description="By argument and auxiliary state.")
    parameters: RunParameters = RunParameters()


class BackwardRequest(BaseModel):
    graph: Graph
    inputs: list[Tensor] = Field(description="By argument and auxiliary state, and `head_grad:<output>`.")
    parameters: BackwardParameters = BackwardParameters()


class TensorsAnswer(BaseModel):
    outputs: list[Tensor] = Field(description="By output; backward adds `grad:<argument>`.")


class Operator(BaseModel):
    name: str
    aliases: list[str]
    doc: str
    inputs: Any
    outputs: Any
    params: dict[str, Any] = Field(description="JSON Schema of the parameters.")
    differentiable: bool
    devices: list[str]
    levels: dict[str, list[str]] = Field(description="By device, the levels of its computes, highest first.")


class Catalogue(BaseModel):
    operators: list[Operator]


class SessionRequest(BaseModel):
    device: str = "cpu"
    ttl_s: float | None = Field(default=None, description="Seconds that it is kept unused.")
    seed: int = 0
    code: bool | None = Field(
        default=None, description="Whether it may bring code, in a process of its own; by default as the token may."
    )


class SessionAnswer(BaseModel):
    id: str
    device: str
    ttl_s: float
    limits: dict[str, int]


class Session(SessionAnswer):
    idle_s: float
    created: float = Field(description="Seconds since 1970.")
    next_seq: int
    objects: int = Field(description="Arrays and executors.")
    bytes: int
    peak_bytes: int


class SessionList(BaseModel):
    sessions: list[Session]


class Deleted(BaseModel):
    deleted: str


class CommandsRequest(BaseModel):
    seq: int | None = Field(default=None, ge=1, description="The batch's place, from 1; the next one by default.")
    commands: list[Commands]
    wait: bool = Field(default=True, description="false: answer 202 at once; an error is told to the next that waits.")
    inputs: list[Tensor] = []


class CommandsAnswer(BaseModel):
    results: list[dict[str, Any]] = Field(description="What describing commands tell, with their `command` number.")
    outputs: list[Tensor] = Field(default=[], description="What was fetched.")


class Accepted(BaseModel):
    accepted: int


REQUESTS: tuple[type[BaseModel], ...] = (
    GraphRequest,
    ShapesRequest,
    TypesRequest,
    ForwardRequest,
    BackwardRequest,
    SessionRequest,
    CommandsRequest,
)
"""Bodies; FastAPI does not see them, for it does not read them."""

_STATUSES = {
    400: "Malformed, or unknown names.",
    401: "No token, or a wrong one.",
    403: "A token without the scope.",
    404: "Not there, or not yours.",
    409: "An id or seq that is taken.",
    410: "A session that has ended.",
    413: "Larger than a limit.",
    422: "Shapes or types that do not fit.",
    429: "More than the owner may have.",
    500: "An error of the server's own.",
    501: "Not supported here.",
    503: "Busy, stopping, or a worker that ended.",
    504: "It took too long.",
}


def documented(
    request: type[BaseModel] | None,
    answer: type[BaseModel],
    *errors: int,
    framed: bool = False,
    status: int = 200,
    accepted: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """The keywords of a route that say what it takes and gives.

    Args:
        request, answer: models of the JSON.
        errors: further statuses that it may answer.
        framed: whether tensors may travel as bytes, both ways.
        status: of success.
        accepted: the model of a 202.
    """
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "description": FRAME}}}
    told: dict[str, Any] = {"status_code": status, "response_model": None, "responses": {}}
    told["responses"][status] = {"model": answer, "description": "Done."}
    if framed:
        told["responses"][status]["content"] = binary
    if accepted is not None:
        told["responses"][202] = {"model": accepted, "description": "Taken; it runs in its turn."}
    for each in sorted({401, 403, 429, 500, 503, *errors}):
        told["responses"][each] = {"model": Error, "description": _STATUSES[each]}
    if request is not None:
        content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{request.__name__}"}}}
        extra: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
        if framed:
            content |= binary
            extra["parameters"] = [
                {
                    "name": HEADER_LENGTH,
                    "in": "header",
                    "required": False,
                    "schema": {"type": "integer"},
                    "description": "Bytes of the JSON part; without it the whole body is JSON.",
                }
            ]
        told["openapi_extra"] = extra
    return told
