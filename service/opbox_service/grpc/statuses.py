"""The status of gRPC for an error: by its class where that says more than the status of HTTP, else by that."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

__all__ = ["STATUS_CODES", "StatusCode", "status_code"]


class StatusCode(IntEnum):
    """gRPC's statuses, by their published numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


STATUS_CODES: Mapping[int, StatusCode] = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    410: StatusCode.NOT_FOUND,
    413: StatusCode.RESOURCE_EXHAUSTED,
    415: StatusCode.UNIMPLEMENTED,
    422: StatusCode.INVALID_ARGUMENT,
    424: StatusCode.ABORTED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    500: StatusCode.INTERNAL,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
    507: StatusCode.RESOURCE_EXHAUSTED,
}
_BY_CLASS: Mapping[str, StatusCode] = {
    "ModelNotReadyError": StatusCode.UNAVAILABLE,
}
"""REST answers 400 for it, as the Open Inference Protocol's clients expect."""


def status_code(status: int, kind: str) -> StatusCode:
    """The status of gRPC for an error.

    Args:
        status: of HTTP.
        kind: the name of the error's class.

    Example:
        >>> status_code(400, "ModelNotReadyError")
        <StatusCode.UNAVAILABLE: 14>
    """
    return _BY_CLASS.get(kind) or STATUS_CODES.get(status, StatusCode.UNKNOWN)
