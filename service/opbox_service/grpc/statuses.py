"""The status of gRPC for an error: by its class where that says more than the status of HTTP, else by that."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

__all__ = ["STATUS_CODES", "status_code"]

STATUS_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.UNIMPLEMENTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    424: grpc.StatusCode.ABORTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_BY_CLASS: Mapping[str, grpc.StatusCode] = {
    "ModelNotReadyError": grpc.StatusCode.UNAVAILABLE,
}
"""REST answers 400 for it, as the Open Inference Protocol's clients expect."""


def status_code(status: int, kind: str) -> grpc.StatusCode:
    """The status of gRPC for an error.

    Args:
        status: of HTTP.
        kind: the name of the error's class.

    Example:
        >>> status_code(400, "ModelNotReadyError")
        <StatusCode.UNAVAILABLE: (14, 'unavailable')>
    """
    return _BY_CLASS.get(kind) or STATUS_CODES.get(status, grpc.StatusCode.UNKNOWN)
