"""Datasets that stay on the server: blocks of rows by their hash, and named datasets made of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from opbox_protocol.errors import BadRequestError, UnsupportedError

from ..carriers import Answer, Call, Done
from ..dataset_documents import BLOCK_NAME, ArrayDocuments, BlockName, check_blocks
from ..dataset_store import DATASET_NAME, DatasetArray, DatasetStore, FileDatasets, NamedDataset
from ..validation import InPieces
from .health import Place
from .models import Body, Tensor, TensorBody

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = [
    "BlockRequest",
    "BlocksRequest",
    "DatasetList",
    "DatasetRequest",
    "DeletedDataset",
    "MissingBlocks",
    "SavedDataset",
    "StoredBlock",
    "datasets",
    "delete",
    "find_blocks",
    "put_block",
    "put_dataset",
]


class BlocksRequest(Body):
    """Names of blocks."""

    blocks: Annotated[list[BlockName], InPieces()] = Field(description="SHA-256 of each block's bytes.")


class MissingBlocks(BaseModel):
    """Which of the blocks your store lacks."""

    missing: list[int] = Field(description="Their positions in the request.")


class BlockRequest(TensorBody):
    """A block: one tensor, whose bytes count."""

    model_config = ConfigDict(json_schema_extra={"required": ["inputs"]})

    inputs: SkipValidation[list[Tensor]] = Field(default=[], description="One tensor.")


class StoredBlock(BaseModel):
    """The block that is stored now."""

    block: str
    bytes: int
    outputs: list[Tensor] = Field(default=[], description="Empty.")


class DatasetRequest(Body):
    """A named dataset, whose blocks are in your store."""

    arrays: ArrayDocuments
    published: bool = Field(default=False, description="Whether other owners may read it, as owner/name.")


class SavedDataset(BaseModel):
    """The dataset that is saved now."""

    name: str
    bytes: int


class ListedArray(BaseModel):
    """An array of a dataset."""

    name: str
    shape: list[int]
    dtype: str
    bytes: int


class ListedDataset(BaseModel):
    """A dataset."""

    name: str
    owner: str
    yours: bool
    published: bool
    saved: float = Field(description="Seconds since 1970.")
    bytes: int
    arrays: list[ListedArray]


class DatasetList(BaseModel):
    """Your datasets by name, and those that others have published."""

    datasets: list[ListedDataset]
    used_bytes: int = Field(description="Bytes of all your blocks, those without a name included.")


class DeletedDataset(BaseModel):
    """The name of the dataset that was deleted."""

    deleted: str


def find_blocks(engine: Engine, call: Call, done: Done) -> None:
    """Which of these blocks your store lacks; the time to live of the others begins anew."""
    done(Answer({"missing": _store_of(engine).missing(call.owner, call.body.blocks)}))


def put_block(engine: Engine, call: Call, done: Done) -> None:
    """Store a block of rows under the SHA-256 of its bytes."""
    block = call.parameters["block"]
    if not re.fullmatch(BLOCK_NAME, block):
        raise BadRequestError(f"block {block[:80]!r}: expected the SHA-256 of its bytes, 64 digits of 0-9 and a-f")
    if len(call.tensors) != 1:
        raise BadRequestError(f"inputs: expected one tensor with the block's bytes, got {len(call.tensors)}")
    (tensor,) = call.tensors.values()
    data = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    _store_of(engine).put(call.owner, block, data)
    done(Answer({"block": block, "bytes": len(data)}))


def put_dataset(engine: Engine, call: Call, done: Done) -> None:
    """Give blocks of your store a name, under which they stay until you delete it; another one of the name goes."""
    name, body = call.parameters["dataset"], call.body
    if not re.fullmatch(DATASET_NAME, name):
        raise BadRequestError(
            f"dataset {name[:80]!r}: expected up to 64 letters, digits, dots, dashes and underlines, a letter or digit "
            "first"
        )
    check_blocks(body.arrays)
    arrays = {
        array_name: DatasetArray(array.shape, array.dtype, array.block_rows, array.blocks)
        for array_name, array in body.arrays.items()
    }
    _store_of(engine).save(call.owner, name, NamedDataset(arrays, body.published, call.owner))
    done(Answer({"name": name, "bytes": sum(array.nbytes for array in arrays.values())}))


def datasets(place: Place, call: Call, done: Done) -> None:
    """Your datasets, and those that others have published."""
    store = _files_of(place)
    rows = [
        {
            "name": row.name,
            "owner": row.owner,
            "yours": row.owner == call.owner,
            "published": row.dataset.published,
            "saved": row.saved,
            "bytes": sum(array.nbytes for array in row.dataset.arrays.values()),
            "arrays": [
                {"name": name, "shape": list(array.shape), "dtype": array.dtype, "bytes": array.nbytes}
                for name, array in row.dataset.arrays.items()
            ],
        }
        for row in store.listed(call.owner)
    ]
    done(Answer({"datasets": rows, "used_bytes": store.used(call.owner)}))


def delete(place: Place, call: Call, done: Done) -> None:
    """Delete a dataset's name; its blocks go after their time to live, or when your quota needs their space."""
    name = call.parameters["dataset"]
    _files_of(place).delete(call.owner, name)
    done(Answer({"deleted": name}))


def _store_of(engine: Engine) -> DatasetStore:
    if engine.dataset_store is None:
        raise UnsupportedError("datasets: expected a server with a store of them, got one without")
    return engine.dataset_store


def _files_of(place: Place) -> FileDatasets:
    if place.datasets is None:
        raise UnsupportedError("datasets: expected a server with a store of them, got one without")
    return place.datasets
