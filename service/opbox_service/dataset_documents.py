"""A named dataset as JSON: in requests, on the disk and between processes, checked by the same models everywhere."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from opbox_ops.params import AnyDType
from opbox_protocol.errors import BadRequestError
from opbox_protocol.frame_header import MAX_RANK

from .validation import Expected, InPieces, Strict

__all__ = ["BLOCK_NAME", "ArrayDocument", "ArrayDocuments", "BlockName", "DatasetDocument", "check_blocks"]

BLOCK_NAME = r"[0-9a-f]{64}"
MAX_ARRAYS = 64
BlockName = Annotated[str, Field(pattern=f"^{BLOCK_NAME}$"), Expected("a SHA-256, 64 digits of 0-9 and a-f")]
Length = Annotated[int, Field(ge=0), Expected("an integer of 0 or more")]


class ArrayDocument(Strict):
    """An array of a dataset: its first axis are the rows, and its bytes lie in blocks."""

    shape: Annotated[list[Length], Field(min_length=1, max_length=MAX_RANK)]
    dtype: AnyDType
    block_rows: Annotated[int, Field(ge=1), Expected("an integer of 1 or more")] = Field(
        description="Rows of a block; the last block has the rest."
    )
    blocks: Annotated[list[BlockName], InPieces()]


ArrayDocuments = Annotated[dict[str, ArrayDocument], Field(min_length=1, max_length=MAX_ARRAYS)]


class DatasetDocument(Strict):
    """A dataset as the server writes it."""

    arrays: ArrayDocuments
    published: bool
    owner: str


def check_blocks(arrays: dict[str, ArrayDocument]) -> None:
    """Raise BadRequestError unless each array has as many blocks as its rows take."""
    for name, array in arrays.items():
        count = -(-array.shape[0] // array.block_rows)
        if len(array.blocks) != count:
            raise BadRequestError(
                f"arrays.{name[:64]}.blocks: expected {count} of {array.block_rows} rows for {array.shape[0]}, got "
                f"{len(array.blocks)}"
            )
