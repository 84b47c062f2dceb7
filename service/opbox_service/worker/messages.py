"""The messages between the API process and a worker, over a SOCK_SEQPACKET pair: one JSON object each.

From the API:

    settings   the first message; the settings follow it, and a process for code gets its `bounds` too
    call       id, method, path, owner, scopes, weight, interactive, quota, rid, header_length, binary, non_finite,
               size, segment: a request; trace, its traceparent, where it is traced
    cancel     id, status, error: stops it
    release    segment: an answer's buffer is free again
    drop       segments: buffers of requests that are no more
    stored     id, status, error: what a `save`, `load` or `rows` came to
    moved      session: another process has it
    stay       session, status, error: none could take it over
    adopt      as `call`, to a process for code: the descriptor with it is the image of a session to go on with
    stop       the server stops soon: checkpoints are to be saved

From the worker:

    ready      it takes calls; or `failed`, with the reason
    answer     id, status, header_length, commands, size, segment, sessions, queue; times, where calls ran for long;
               problem, the exception of an internal error for the log; stages of a traced request
    answers    answers: those of one run, whose bodies follow one another; a process for code sends none
    drop       segments, sessions, times: buffers of answers that are no more, and how long calls waited and ran
    account    ended, memory: sessions that ended, and what owners have on a device now where that changed
    reported   rows: what programs report of their trainings: owner, session, time, steps, epoch, values
    uploaded   owner, session, rows, more: code, before it runs
    move       session, owner, device, bytes: code has come for it, and its image with this; or `left`
    save, load id, owner, name: a checkpoint, whose file is the descriptor that comes with `save`, or with its `stored`
    rows       id, do, owner, name: a request to the store of datasets, see `dataset_requests`

Bodies up to buffers.INLINE bytes follow the JSON in the message; larger ones lie in a shared buffer, known by its
number (`segment`); its file descriptor travels once, with the first message that speaks of it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from ..carriers import RawRequest

__all__ = ["DEVICE_LOST", "LARGEST", "call", "read", "receive", "send", "write"]

DEVICE_LOST = 79
"""Exit status of a worker whose GPU is unusable for the process."""
LARGEST = 1 << 17
"""Maximum bytes of a message; the kernel's socket buffer holds about 200,000."""

_INT = 4
"""Bytes of a descriptor's number."""
_DESCRIPTOR = socket.CMSG_LEN(_INT)
_FLAGS = socket.MSG_CMSG_CLOEXEC


def write(message: dict[str, Any], inline: bytes | memoryview = b"") -> bytes:
    """A message's bytes, with others behind its object."""
    try:
        text = orjson.dumps(message)
    except TypeError:  # an integer beyond 64 bits, or half a pair of surrogates: rare, and Python's own writes it
        text = json.dumps(message, separators=(",", ":")).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, inline))


def call(id: int, request: RawRequest, segment: int | None, kind: str = "call") -> dict[str, Any]:
    """The message that brings a request; its body follows it, or lies in the shared buffer `segment`."""
    trace = {"trace": request.trace} if request.trace else {}
    return {
        "kind": kind,
        "id": id,
        "method": request.route.method,
        "path": request.path,
        "owner": request.owner,
        "scopes": list(request.scopes),
        "rid": request.request_id,
        "header_length": request.header_length,
        "binary": request.binary,
        "non_finite": request.non_finite,
        "weight": request.weight,
        "interactive": request.interactive,
        "quota": None if request.quota is None else list(request.quota),
        "model": None if request.model is None else list(request.model),
        "size": len(request.view),
        "segment": segment,
        **trace,
    }


def read(message: bytes) -> tuple[dict[str, Any], memoryview]:
    """A message's object, and the bytes behind it."""
    end = 4 + int.from_bytes(message[:4], "little")
    view = memoryview(message)
    header: dict[str, Any] = _parsed(view[4:end])
    return header, view[end:]


def _parsed(text: memoryview) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(bytes(text))


def receive(sock: socket.socket, *, wait: bool = True) -> tuple[bytes, int | None]:
    """One message and the descriptor that came with it; no bytes at the end of the connection.

    Raises:
        BlockingIOError: there is none, and it is not to `wait`, or the socket does not.
        ValueError: the message was longer than LARGEST.
    """
    message, ancillary, flags, _ = sock.recvmsg(LARGEST, _DESCRIPTOR, _FLAGS if wait else _FLAGS | socket.MSG_DONTWAIT)
    fd = None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) >= _INT:
            fd = int.from_bytes(data[:_INT], sys.byteorder)
    if fd is not None and (flags & socket.MSG_TRUNC or not message):
        os.close(fd)
        fd = None
    if flags & socket.MSG_TRUNC:
        raise ValueError(f"expected a message of at most {LARGEST} bytes, got a longer one")
    return message, fd


def send(sock: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message whole (the socket keeps messages apart)."""
    if fds:
        socket.send_fds(sock, [message], list(fds))
    else:
        sock.send(message)
