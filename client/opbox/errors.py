"""What the client raises. Every error is an `MXNetError`, so scripts that catch MXNet's go on working.

MXNetError
├── WireError               a frame that cannot be read
├── TransportError          the server did not answer
└── RemoteError             the server (or the embedded engine) refused: status, type, node, request id
    └── one subclass for each `type` of the service's error tree: ShapeError, ParamError, …
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MXNetError", "RemoteError", "TransportError", "WireError", "raise_remote"]


class MXNetError(RuntimeError):
    """Base of all errors of this library."""


class WireError(MXNetError):
    """A frame that cannot be read: lengths that disagree, a malformed header, an unknown datatype."""


class TransportError(MXNetError):
    """The server could not be reached, or broke off its answer."""


class RemoteError(MXNetError):
    """An error that the engine reported.

    Attributes:
        status: the HTTP status.
        type: the name of the service's error type ("ShapeError").
        node: the graph node concerned, or None.
        request_id: to find the request in the server's log, or None.
        detail: further facts (the failed command, the user's traceback).
    """

    status = 500

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        type: str = "RemoteError",
        node: str | None = None,
        request_id: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.node = node
        self.request_id = request_id
        self.detail = dict(detail or {})
        if "traceback" in self.detail:
            self.add_note(f"In the operator's code:\n{self.detail['traceback']}")


_TYPES = (
    "AuthenticationError",
    "BadRequestError",
    "ConflictError",
    "DTypeError",
    "DeadlineError",
    "ForbiddenError",
    "GoneError",
    "GraphError",
    "LimitError",
    "NotFoundError",
    "NotReadyError",
    "ParamError",
    "QuotaError",
    "ShapeError",
    "UnderdeterminedError",
    "UnknownOperatorError",
    "UnsupportedError",
    "UserCodeError",
    "WorkerDiedError",
)
_PARENTS = {"GraphError": "BadRequestError", "UnknownOperatorError": "BadRequestError", "ParamError": "BadRequestError"}
_PARENTS |= {"UnderdeterminedError": "ShapeError", "DTypeError": "ShapeError"}
_classes: dict[str, type[RemoteError]] = {}


def error_class(name: str) -> type[RemoteError]:
    if name not in _classes:
        parent = error_class(_PARENTS[name]) if name in _PARENTS else RemoteError
        _classes[name] = type(name, (parent,), {"__doc__": f"The engine's {name}.", "__module__": __name__})
    return _classes[name]


for _name in _TYPES:
    globals()[_name] = error_class(_name)
__all__ += list(_TYPES)


def raise_remote(status: int, body: Mapping[str, Any]) -> None:
    """Raise the error that an answer of the engine describes (`error`, `type`, `node`, `request_id`, `detail`)."""
    name = str(body.get("type", "RemoteError"))
    raise _classes.get(name, RemoteError)(
        str(body.get("error", "the server gave no reason")),
        status=status,
        type=name,
        node=body.get("node"),
        request_id=body.get("request_id"),
        detail=body.get("detail"),
    )
