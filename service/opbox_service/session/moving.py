"""Moves a session to another process: writes its image to a file, and restores a session from one.

A session that may bring code begins in a worker that others share. When the batch that brings its first code has its
turn, the session rests (`ServerSession.begin_move`), and everything that it has goes into an image: arrays, executors,
random numbers, the batches that wait and have been answered already. Batches that somebody waits for are sent again by
the API process. Until the other process has the session, this one can go on with it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..commands.table_image import TableImage

__all__ = ["MOVED", "MovedError", "read_image", "write_image"]

MOVED = 421
"""Internal status: the session has moved, repeat the call there."""
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64


class MovedError(MXNetError):
    """Raised inside the server when a session has moved or is moving; clients never see it.

    Args:
        seq: the place of the batch that is to be sent again; None where it has none yet.
    """

    status = MOVED

    def __init__(self, seq: int | None = None) -> None:
        super().__init__("the session moves to a process of its own: call again", detail={"seq": seq})


def write_image(header: dict[str, Any], image: TableImage) -> int:
    """Write an image to a file without a name, and return its descriptor; OSError when the system has no room."""
    text = json.dumps(
        {**header, "table": image.header, "sizes": [int(block.nbytes) for block in image.blocks]}
    ).encode()
    fd = os.memfd_create("opbox-session", os.MFD_CLOEXEC)
    try:
        with open(os.dup(fd), "wb", buffering=0) as file:
            at = _write(file, _LENGTH.pack(len(text)) + text, 0)
            for block in image.blocks:
                at = _write(file, block.data.cast("B") if block.nbytes else b"", at)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(file: Any, part: Any, at: int) -> int:
    """Write a part at `at`; where the next one begins."""
    file.seek(at)
    view = memoryview(part)
    while len(view):
        view = view[file.write(view) :]
    at += len(part)
    return at + -at % _ALIGNMENT


def read_image(fd: int) -> tuple[dict[str, Any], TableImage]:
    """The header and the table of an image; the arrays are views of the file."""
    memory = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
    (length,) = _LENGTH.unpack_from(memory)
    at = _LENGTH.size + length
    header: dict[str, Any] = json.loads(bytes(memory[_LENGTH.size : at]))
    image = TableImage(header.pop("table"))
    for size in header.pop("sizes"):
        at += -at % _ALIGNMENT
        image.add(np.frombuffer(memory[at : at + size], np.uint8))
        at += size
    return header, image
