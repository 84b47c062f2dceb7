"""The one table from domain errors to HTTP statuses, and how an error is told: a JSON object, no HTTP types here."""

from __future__ import annotations

from typing import Any

from opbox.errors import WireError
from opbox_ops import errors

__all__ = ["STATUSES", "status_of", "tell"]

STATUSES: dict[type[Exception], int] = {
    WireError: 400,
    errors.BadRequestError: 400,
    errors.AuthenticationError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.GoneError: 410,
    errors.LimitError: 413,
    errors.ShapeError: 422,
    errors.UserCodeError: 422,
    errors.QuotaError: 429,
    errors.UnsupportedError: 501,
    errors.NotReadyError: 503,
    errors.WorkerDiedError: 503,
    errors.DeadlineError: 504,
}
"""By class; a subclass has its nearest ancestor's."""

MESSAGE = 50_000
"""Characters of an error's sentence that are told."""
_OF_NAME = {kind.__name__: status for kind, status in STATUSES.items()}


def status_of(error: BaseException) -> int:
    """The HTTP status of an error; 500 when it is none of ours."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def tell(error: BaseException) -> tuple[int, dict[str, Any]]:
    """An error as its status and the JSON object that the client reads.

    An error that is none of ours is told without its text, which may hold paths; the log has it.
    """
    if isinstance(error, MemoryError):
        error = errors.QuotaError("there is not enough memory for this call: use smaller arrays, or free some")
    if isinstance(error, WireError):
        return 400, {"error": str(error), "type": "BadRequestError", "node": None, "detail": {}}
    if isinstance(error, errors.OpboxError):
        message = error.message
        if len(message) > MESSAGE:  # with what a user's operator returned, say
            message = f"{message[:MESSAGE]}… ({len(message)} characters)"
        told = {"error": message, "type": type(error).__name__, "node": error.node, "detail": error.detail}
        return status_of(error), told
    told = {"error": "internal error: the server's log has the reason, under this request id", "type": "InternalError"}
    return 500, {**told, "node": None, "detail": {}}
