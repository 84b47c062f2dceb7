"""The file of a checkpoint, written and read. What is read is checked as a request is: anybody may have written it.

A file is MAGIC, the length of a JSON header, and from byte START on a frame of the wire format: the header, and the
arrays' bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import BadRequestError, WireError
from opbox_protocol.frame_header import counted

from .. import json_text
from ..checkpoint_store import Buffer
from ..quota import Budget
from ..validation import Expected, FieldList, InPieces, RandomSeed, Strict, validate
from .command import Id, IdsByName
from .executors import Bind

__all__ = ["Datatype", "Position", "SavedSession", "Size", "SourcePlace", "RunPlace", "read", "written"]

FORMAT: Literal["opbox checkpoint"] = "opbox checkpoint"
MAGIC = b"opboxck1"
START = 64
"""The byte at which the frame begins: its tensors are aligned to that."""
MAX_DEPTH = 256
"""Maximum nesting of the header, which has whole graphs with their subgraphs."""
MAX_EXECUTORS, MAX_RUNS = 1 << 31, 1 << 62
"""Of a session and of an executor: random streams are numbered by them, in words of 32 and of 64 bits."""
_LENGTH = struct.Struct("<Q")
_LIMITS = wire.Limits(
    header_bytes=1 << 40,
    tensor_bytes=1 << 50,
    tensors=1 << 31,
    json_depth=MAX_DEPTH,
    json_values=1 << 40,
    json_keys=1 << 40,
    parse=json_text.parse,
)
"""A session has quotas for what the others limit."""

Position = Annotated[
    dict[str, int | float | str], Field(max_length=64, description="The program's own note of its position.")
]
Size = Annotated[int, Field(ge=0), Expected("an integer of 0 or more")]
Datatype = Annotated[str, Field(pattern=f"^({'|'.join(DATATYPES)})$"), Expected(f"one of {', '.join(DATATYPES)}")]
Executors = Annotated[int, Field(ge=0, le=MAX_EXECUTORS), Expected(f"an integer from 0 to {MAX_EXECUTORS}")]
Runs = Annotated[int, Field(ge=0, le=MAX_RUNS), Expected(f"an integer from 0 to {MAX_RUNS}")]


class BlankArray(FieldList):
    """An array that an executor reads or writes, and whose values are not saved."""

    id: Id
    shape: list[Size]
    datatype: Datatype


class RunPlace(FieldList):
    """The place of an executor's random numbers (`NodeStreams.snapshot`)."""

    executor: Annotated[int, Field(ge=1, le=MAX_EXECUTORS), Expected(f"an integer from 1 to {MAX_EXECUTORS}")]
    run: Runs
    drawn: Annotated[int, Field(ge=0, le=1), Expected("0 or 1")]


class SourcePlace(Strict):
    """The place of a session's random source (`RandomSource.snapshot`)."""

    number: RandomSeed
    executors: Executors
    moves: Runs


class RandomPlaces(Strict):
    """Where random numbers go on, for the session and for each of its executors."""

    source: SourcePlace
    executors: Annotated[list[RunPlace | None], InPieces()]


class Header(Strict):
    """The header of a checkpoint's file."""

    format: Literal["opbox checkpoint"]
    device: str
    step: Size
    position: Position
    random: RandomPlaces
    ids: IdsByName
    blank: Annotated[list[BlankArray], InPieces()]
    executors: Annotated[list[dict[str, Any]], InPieces()]
    arrays: list[Any]
    parameters: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A checkpoint's content, checked as far as that can be done without a session.

    Attributes:
        header: the file's.
        tensors: the saved arrays by name, views of the file.
        executors: the commands that bind them.
    """

    header: Header
    tensors: Mapping[str, Any]
    executors: Sequence[Bind]


def written(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]]) -> tuple[int, list[Buffer]]:
    """The bytes of a file, in parts, and their number.

    Args:
        header: as in Header, without format, arrays and parameters.
        tensors: the arrays, by name.
    """
    head, buffers = wire.encode({"format": FORMAT, **header}, tensors, key="arrays")
    start = (MAGIC + _LENGTH.pack(len(head))).ljust(START, b"\0")
    return START + wire.frame_size(head, buffers), [start, head, *buffers]


def read(data: Buffer, budget: Budget, max_rank: int) -> SavedSession:
    """Read the file of a checkpoint, whose name the caller puts before what this raises.

    Args:
        data: the file's bytes.
        budget: must have the memory that the header takes when it has been parsed.
        max_rank: the most dimensions of an array.

    Raises:
        BadRequestError: it is no checkpoint, or has something in it that no session can have.
        QuotaError: the header is too large.
    """
    view = memoryview(data)
    try:
        if bytes(view[: len(MAGIC)]) != MAGIC:
            raise WireError("no checkpoint")
        (length,) = _LENGTH.unpack_from(view, len(MAGIC))
        if length > len(view) - START:
            raise WireError("it is cut off")
        budget.check(json_text.parsed_bytes(length, *counted(view[START : START + length])))
        frame = wire.decode(view[START:], length, key="arrays", limits=_LIMITS)
    except (WireError, struct.error) as error:
        raise BadRequestError("expected a file that this server wrote, got another") from error
    return _checked(validate(Header, frame.header), frame.tensors, max_rank)


def _checked(header: Header, tensors: Mapping[str, Any], max_rank: int) -> SavedSession:
    """Raise BadRequestError unless the parts of a file fit each other."""
    if header.ids.keys() != tensors.keys():
        odd = next(iter(header.ids.keys() ^ tensors.keys()))
        raise BadRequestError(f"ids: expected a number for each array and no other, got {odd[:64]!r} on one side alone")
    shapes = [tensor.shape for tensor in tensors.values()] + [blank.shape for blank in header.blank]
    rank = max(map(len, shapes), default=0)
    if rank > max_rank:
        raise BadRequestError(f"arrays: expected at most {max_rank} dimensions, got {rank}")
    places = header.random.executors
    if len(places) != len(header.executors):
        raise BadRequestError(f"random.executors: expected {len(header.executors)}, got {len(places)}")
    executors = []
    for number, executor in enumerate(header.executors):
        try:
            if isinstance(executor.get("graph"), str):  # a name that another owner's graph may have
                raise BadRequestError("graph: expected symbol JSON as an object, got a string")
            executors.append(validate(Bind, {"do": "bind", **executor}))
        except BadRequestError as error:
            error.reword(f"executors.{number}: {error.message}")
            raise
    return SavedSession(header, tensors, executors)
