"""What HTTP asks of a request's head beyond its form: headers that come once, and the host of a URL with one.

Two values of such a header are refused: a proxy may have looked at one of them, and this server at the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from opbox_protocol.errors import BadRequestError
from opbox_protocol.wire import ANSWERED, CALL, HEADER_LENGTH, PART

__all__ = ["check_single", "host_of_target"]

_SINGLE = frozenset(
    (
        *(b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"origin"),
        *(b"traceparent", b"x-request-id"),
        *(name.lower().encode() for name in (ANSWERED, CALL, HEADER_LENGTH, PART)),
    )
)
"""Headers of which the server takes one value."""
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(?:[/?]|$)", re.IGNORECASE)


def check_single(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise BadRequestError for two headers of one name that may come once.

    Args:
        headers: with names in lower case.
    """
    names = [name for name, _ in headers]
    if len(set(names)) == len(names):
        return
    for name in names:
        if name in _SINGLE and names.count(name) > 1:
            raise BadRequestError(f"{name.decode().title()}: expected one such header, got {names.count(name)}")


def host_of_target(target: bytes) -> bytes | None:
    """The host, with its port, that a request's target names; None for a path, which names none.

    Example:
        >>> host_of_target(b"http://localhost:8000/v2")
        b'localhost:8000'

    Raises:
        BadRequestError: it is neither a path nor a URL of HTTP.
    """
    if target.startswith(b"/") or target == b"*":
        return None
    match = _ABSOLUTE.match(target)
    if match is None:
        text = target[:100].decode("latin-1")
        raise BadRequestError(f"request: expected a path such as /v2/health/live, or a URL of HTTP, got {text!r}")
    return match[1]
