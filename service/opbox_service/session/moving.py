"""Moves a session to another process: writes its image to a file, and restores a session from one.

A session that may bring code begins in a worker that others share. When the batch that brings its first code has its
turn, the session rests (`ServerSession.begin_move`), and everything that it has goes into an image: arrays, executors,
random numbers, the batches that wait and have been answered already. Batches that somebody waits for are sent again by
the API process. Until the other process has the session, this one can go on with it.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import BadRequestError, MXNetError

from ..commands.checkpoint_file import Datatype, Size
from ..commands.table_image import TableImage
from ..owner_terms import Scope
from ..sealed_files import map_sealed, write_sealed
from ..validation import FieldList, Strict, validate

__all__ = ["MOVED", "MovedError", "SessionHeader", "read_image", "write_image"]

MOVED = 421
"""Internal status: the session has moved, repeat the call there."""
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64
_SUBJECT = "the image of a session"


class MovedError(MXNetError):
    """Raised inside the server when a session has moved or is moving; clients never see it.

    Args:
        seq: the place of the batch that is to be sent again; None where it has none yet.
    """

    status = MOVED

    def __init__(self, seq: int | None = None) -> None:
        super().__init__("the session moves to a process of its own: call again", detail={"seq": seq})


class WaitingTensor(FieldList):
    """A tensor of a batch: the number of its block, its shape and its type."""

    block: Size
    shape: list[Size]
    datatype: Datatype

    def of(self, image: TableImage) -> np.ndarray[Any, Any]:
        """The tensor, a view of its block; BadRequestError when that is another's."""
        if self.block < len(image.blocks):
            block, dtype = image.blocks[self.block], DATATYPES[self.datatype]
            if block.nbytes == math.prod(self.shape) * dtype.itemsize:
                return block.view(dtype).reshape(self.shape)
        raise BadRequestError(f"{_SUBJECT}: a tensor: expected a block of its size, got block {self.block}")


class WaitingBatch(FieldList):
    """A batch that has been answered and has not run yet."""

    seq: Size
    commands: list[Any]
    scopes: list[Scope]
    tensors: dict[str, WaitingTensor]


class SessionError(FieldList):
    """The error that the next batch is to be answered by."""

    status: int
    body: dict[str, Any]


class SessionHeader(Strict):
    """What an image has beside the arrays; see ServerSession.

    Attributes:
        table: the header of the table's image.
        sizes: bytes of its blocks.
    """

    id: str
    device: str
    ttl_s: Annotated[float, Field(gt=0)]
    script: str
    host: str
    created: float
    idle_s: float
    next: Size
    peak: Size
    error: SessionError | None
    batches: list[WaitingBatch]
    awaited: list[Size]
    table: dict[str, Any]
    sizes: list[Size]


def write_image(header: dict[str, Any], image: TableImage) -> int:
    """Write an image to a file without a name, and return its descriptor; OSError when the system has no room."""
    text = json.dumps(
        {**header, "table": image.header, "sizes": [int(block.nbytes) for block in image.blocks]}
    ).encode()
    parts: list[Any] = []
    at = 0
    for part in (_LENGTH.pack(len(text)) + text, *(block.data.cast("B") for block in image.blocks if block.nbytes)):
        parts += (bytes(-at % _ALIGNMENT), part)
        at += -at % _ALIGNMENT + len(part)
    return write_sealed("opbox-session", parts)


def read_image(fd: int) -> tuple[SessionHeader, TableImage]:
    """The header and the table of an image; the arrays are views of the file.

    Raises:
        BadRequestError: it is no image.
    """
    try:
        memory = map_sealed(fd)
        (length,) = _LENGTH.unpack_from(memory)
        at = _LENGTH.size + length
        document = json.loads(bytes(memory[_LENGTH.size : at]))
        if not isinstance(document, dict):
            raise ValueError("no header")
    except (ValueError, OverflowError, RecursionError, struct.error) as error:
        raise BadRequestError(f"{_SUBJECT}: expected a header of JSON, got other bytes ({error})") from error
    try:
        header = validate(SessionHeader, document)
    except BadRequestError as error:
        error.reword(f"{_SUBJECT}: {error.message}")
        raise
    image = TableImage(header.table)
    for size in header.sizes:
        at += -at % _ALIGNMENT
        if at + size > max(at, len(memory)):
            raise BadRequestError(f"{_SUBJECT}: expected {size} bytes at {at}, got {len(memory)} bytes in all")
        image.add(np.frombuffer(memory[at : at + size], np.uint8))
        at += size
    return header, image
