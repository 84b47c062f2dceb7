"""Writes a request to a socket, until it is whole or the answer comes before that."""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Sequence
from typing import Any

__all__ = ["send_request"]

SMALL = 1 << 16
"""Requests up to this many bytes are sent in one write."""
PIECE = 1 << 20
"""Bytes to write at a time of a larger request; an early answer is checked in between."""


def send_request(connection: socket.socket, chunks: Sequence[Any], timeout: float) -> bool:
    """Write a request; False when it is answered before it is whole, or the other side takes no more of it.

    A server that refuses a request for its size does not read it: what it says has to be read instead.

    Args:
        connection: the socket.
        chunks: the head, and the body in pieces.
        timeout: seconds in which some of it has to be taken.

    Raises:
        TimeoutError: nothing of it was.
        OSError: the connection broke, and left no answer that can be looked for.
    """
    if sum(map(len, chunks)) <= SMALL:
        connection.sendall(b"".join(chunks))
        return True
    try:
        if isinstance(connection, ssl.SSLSocket):  # which may be readable without an answer
            for chunk in (b"".join(chunks[:2]), *chunks[2:]):
                connection.sendall(chunk)
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for chunk in (b"".join(chunks[:2]), *chunks[2:]):
                if not _write(connection, selector, memoryview(chunk).cast("B"), timeout):
                    return False
    except (BrokenPipeError, ConnectionResetError):
        return False  # an answer may have come before
    return True


def _write(connection: socket.socket, selector: selectors.BaseSelector, view: memoryview, timeout: float) -> bool:
    at = 0
    while at < len(view):
        ready = selector.select(timeout)
        if not ready:
            raise TimeoutError
        if ready[0][1] & selectors.EVENT_READ:
            return False
        at += connection.send(view[at : at + PIECE])
    return True
