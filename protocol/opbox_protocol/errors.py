"""Every error that a user can meet, one class a kind, for the client, the operators and the server alike.

    MXNetError
    ├── BadRequestError           400   the request cannot be understood
    │   ├── WireError                   a frame that cannot be read
    │   ├── GraphError                  a graph that is none
    │   ├── ParamError                  an operator's parameter
    │   ├── ModelNotReadyError          one that is served, and takes no requests now
    │   └── UnknownOperatorError
    ├── AuthenticationError       401
    ├── ForbiddenError            403
    ├── NotFoundError             404
    │   └── UnknownModelError           a model or version that is not served, or is another owner's
    ├── ConflictError             409
    ├── GoneError                 410   a session that has ended
    ├── LimitError                413
    ├── EncodingError             415   a body in a Content-Encoding that the server does not take
    ├── ShapeError                422   shapes that contradict each other
    │   ├── DTypeError                  element types that do
    │   ├── PositionError               a position outside of an array; an IndexError too
    │   ├── ValueShapeError             a value of another shape than what it is written to; a ValueError too
    │   └── UnderdeterminedError        shapes or types that nothing determines
    ├── UserCodeError             422   an exception in an operator that the user wrote
    ├── PeerLostError             424   another worker of a group has ended
    ├── QuotaError                429
    │   └── StorageError          507   no room for a checkpoint: as a quota, or as the disk has it
    ├── CancelledError            499   a call that was ended before it was done
    ├── InternalError             500   a fault of the server's own
    ├── UnsupportedError          501
    ├── NotReadyError             503
    ├── WorkerDiedError           503
    ├── DeadlineError             504
    ├── OutOfMemoryError          507   the system has refused the call memory
    ├── FileError                       a file that cannot be read or written: raised by the client alone
    │   ├── MissingFileError                there is none, or no folder for it; a FileNotFoundError too
    │   └── DeniedFileError                 it may not be read or written; a PermissionError too
    ├── DamagedFileError                a file whose content is not what it should be; a ValueError too
    └── TransportError                  no answer came: raised by the client alone

The root has MXNet's name, and is a RuntimeError as MXNet's is, so that scripts which catch MXNet's errors catch all of
these. Each message is one sentence: subject, expected, got, what to do. An error that an operator's rule raises knows
its argument; the graph pass that called the rule adds the node (`at`), so the user reads

    fc1 (FullyConnected, train.py:12): weight: expected (10, 20), got (10, 21)

An error travels as a JSON object, `{"error": sentence, "type": class, "node": …, "detail": …, "request_id": …}`:
`error_to_json` writes it, `error_from_json` rebuilds the error from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "STATUSES",
    "AuthenticationError",
    "BadRequestError",
    "CancelledError",
    "ConflictError",
    "DTypeError",
    "DamagedFileError",
    "DeadlineError",
    "DeniedFileError",
    "EncodingError",
    "FileError",
    "ForbiddenError",
    "GoneError",
    "GraphError",
    "InternalError",
    "LimitError",
    "MXNetError",
    "MissingFileError",
    "ModelNotReadyError",
    "NotFoundError",
    "NotReadyError",
    "OutOfMemoryError",
    "ParamError",
    "PeerLostError",
    "PositionError",
    "QuotaError",
    "ShapeError",
    "StorageError",
    "TransportError",
    "UnderdeterminedError",
    "UnknownModelError",
    "UnknownOperatorError",
    "UnsupportedError",
    "UserCodeError",
    "ValueShapeError",
    "WireError",
    "WorkerDiedError",
    "error_from_json",
    "error_to_json",
]

MESSAGE_CHARACTERS = 50_000
"""The longest sentence that travels; a longer one, with what a user's operator returned in it, is cut."""


class MXNetError(RuntimeError):
    """Base of every error that a user can cause or meet.

    Args:
        message: one clear sentence.
        node: name of the graph node concerned, or None.
        detail: further JSON-able values (the user's traceback, the failed command's number).
        request_id: to find the request in the server's log; None where no server was asked.

    Attributes:
        status: the HTTP status of an answer with this error.
        message, node, detail, request_id: as given.
        retry_after: seconds after which the call may be made again, where the server has done nothing of it; or None.
    """

    status: int = 500
    retry_after: float | None = None

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        detail: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.detail: dict[str, Any] = dict(detail or {})
        self.request_id = request_id

    def at(self, node: str, op: str | None, source: str | None = None) -> MXNetError:
        """Prefix the message with a node's name, operator and the user's line, unless it names a node already."""
        if self.node is not None:
            return self
        place = ", ".join(part for part in (op, source) if part)
        self.reword(f"{node} ({place}): {self.message}" if place else f"{node}: {self.message}")
        self.node = node
        return self

    def reword(self, message: str) -> None:
        """Replace the message."""
        self.message = message
        self.args = (message,)

    def __str__(self) -> str:
        return self.message


class BadRequestError(MXNetError):
    """The request cannot be understood: malformed JSON, a field that is missing or unknown."""

    status = 400


class WireError(BadRequestError):
    """A frame that cannot be read: lengths that disagree, a malformed header, an unknown datatype."""


class GraphError(BadRequestError):
    """The graph is not a graph: a cycle, a dangling index, a duplicate name."""


class ModelNotReadyError(BadRequestError):
    """A model that takes no requests now; the Open Inference Protocol's clients expect this status."""


class UnknownOperatorError(BadRequestError):
    """No operator of that name is registered."""


class ParamError(BadRequestError):
    """An operator parameter is missing, unknown or of the wrong kind."""


class AuthenticationError(MXNetError):
    """No token, or a wrong one."""

    status = 401


class ForbiddenError(MXNetError):
    """A token without the scope that the call needs."""

    status = 403


class NotFoundError(MXNetError):
    """Unknown session, array, executor, graph or operator, or one of another owner."""

    status = 404


class UnknownModelError(NotFoundError):
    """There is no such model or version for this owner."""


class ConflictError(MXNetError):
    """An id that is taken, or a state that does not allow the command."""

    status = 409


class GoneError(MXNetError):
    """A session that has expired or was deleted."""

    status = 410


class LimitError(MXNetError):
    """Larger than a configured limit."""

    status = 413


class EncodingError(MXNetError):
    """A body in a Content-Encoding that the server does not take."""

    status = 415


class ShapeError(MXNetError):
    """Shapes that contradict each other.

    Raised by rules with the side and position of the argument; the pass turns the position into its name.

    Args:
        message, node, detail, request_id: see MXNetError.
        side: "input" or "output", or None.
        index: the argument's position on that side, or None.
    """

    status = 422

    def __init__(
        self,
        message: str,
        *,
        side: str | None = None,
        index: int | None = None,
        node: str | None = None,
        detail: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, node=node, detail=detail, request_id=request_id)
        self.side = side
        self.index = index


class UnderdeterminedError(ShapeError):
    """Shapes or types that the given inputs do not determine."""


class DTypeError(ShapeError):
    """Element types that contradict each other, or that an operator does not take."""


class PositionError(ShapeError, IndexError):
    """A position outside of the array that it is to be looked up in; MXNet raises IndexError."""


class ValueShapeError(ShapeError, ValueError):
    """A value whose shape is not that of the array it is to be written to.

    MXNet raises ValueError for a part of an array and for an executor's feeds, MXNetError for a batch and for
    parameters; this is both.
    """


class UserCodeError(MXNetError):
    """An exception inside an operator that the user wrote; `detail["traceback"]` is theirs."""

    status = 422


class PeerLostError(MXNetError):
    """Another worker of the group that exchanges arrays has ended; `detail` has its rank."""

    status = 424


class QuotaError(MXNetError):
    """More sessions, memory or requests than the owner may have."""

    status = 429


class StorageError(QuotaError):
    """No space for a checkpoint in the owner's quota or on disk; deleting others helps, waiting does not."""

    status = 507


class CancelledError(MXNetError):
    """The call was cancelled on request, or because its client went away."""

    status = 499


class InternalError(MXNetError):
    """A fault of the server's own; its log has the reason, under the request id."""


class UnsupportedError(MXNetError):
    """A known thing that this server, device or build cannot do."""

    status = 501


class NotReadyError(MXNetError):
    """The server is starting, stopping or at capacity."""

    status = 503


class WorkerDiedError(MXNetError):
    """The worker process that ran the call has ended."""

    status = 503


class DeadlineError(MXNetError):
    """The call outlived its deadline."""

    status = 504


class OutOfMemoryError(MXNetError):
    """The system has refused the call memory: the machine, or its process, has no more. Nothing else is concerned."""

    status = 507


class FileError(MXNetError, OSError):
    """A file that cannot be read or written; MXNet raises its own error there, Python an OSError."""


class MissingFileError(FileError, FileNotFoundError):
    """A file that is not there, or whose folder is not."""


class DeniedFileError(FileError, PermissionError):
    """A file that this user may not read or write."""


class DamagedFileError(MXNetError, ValueError):
    """A file that has been read, and has something else in it than it should.

    MXNet raises its own error where its library reads the file, and ValueError where its Python does; this is both.
    """


class TransportError(MXNetError):
    """The server could not be reached, or broke off its answer."""

    status = 503


_LOCAL = (WireError, TransportError, FileError, MissingFileError, DeniedFileError, DamagedFileError)
"""Errors that only the side which meets them calls by this name; to the other it is the base class."""
_BY_NAME = {
    kind.__name__: kind
    for kind in (value for value in list(globals().values()) if isinstance(value, type))
    if issubclass(kind, MXNetError) and kind not in _LOCAL
}
STATUSES = frozenset(kind.status for kind in _BY_NAME.values())
"""The HTTP statuses of all errors that travel."""


def error_to_json(error: BaseException) -> tuple[int, dict[str, Any]]:
    """An error's HTTP status, and the JSON object that a client reads.

    The `type` is the nearest class of this module. An error that is none of these is written without its text, which
    may hold paths; the log has it.

    Example:
        >>> error_to_json(ShapeError("data: expected 4 axes, got 2"))
        (422, {'error': 'data: expected 4 axes, got 2', 'type': 'ShapeError', 'node': None, 'detail': {}})
    """
    if isinstance(error, MemoryError):
        error = OutOfMemoryError(
            "memory: expected the system to have enough for this call, got none: use smaller arrays, or free some"
        )
    if not isinstance(error, MXNetError):
        error = InternalError("internal error: the server's log has the reason, under this request id")
    message = error.message
    if len(message) > MESSAGE_CHARACTERS:
        message = f"{message[:MESSAGE_CHARACTERS]}… ({len(message)} characters)"
    name = next(kind.__name__ for kind in type(error).__mro__ if kind in _BY_NAME.values())
    return error.status, {"error": message, "type": name, "node": error.node, "detail": error.detail}


def error_from_json(status: int, body: Mapping[str, Any]) -> MXNetError:
    """The error that an answer describes, to be raised; an unknown type becomes a plain MXNetError with that status.

    Args:
        status: the answer's HTTP status.
        body: the JSON object; each of its keys may be missing.

    Example:
        >>> raise error_from_json(422, {"error": "data: expected 4 axes, got 2", "type": "ShapeError"})
        Traceback (most recent call last):
        ShapeError: data: expected 4 axes, got 2
    """
    detail = body.get("detail")
    error = _BY_NAME.get(str(body.get("type")), MXNetError)(
        str(body.get("error", "the server gave no reason")),
        node=body.get("node"),
        detail=detail if isinstance(detail, Mapping) else None,
        request_id=body.get("request_id"),
    )
    error.status = status
    if "traceback" in error.detail:
        error.add_note(f"In the operator's code:\n{error.detail['traceback']}")
    return error
