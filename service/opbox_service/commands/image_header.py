"""The header of a table's image (`table_image`), checked before an array or an executor is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import BadRequestError

from ..validation import FieldList, InPieces, Strict
from .checkpoint_file import Datatype, Position, RunPlace, Size, SourcePlace
from .command import Id, IdsByName, IdsOrNone

__all__ = ["ImageHeader", "ImagePlace", "check_places"]

Blocks = Annotated[int, Field(ge=0)]


class ImagePlace(FieldList):
    """The place of an array in a block of bytes.

    Attributes:
        offset: of the first element, in bytes.
        strides: in bytes.
    """

    block: Blocks
    offset: Size
    shape: list[Size]
    strides: list[int]
    datatype: Datatype


class ImageArray(FieldList):
    """An array by its number."""

    id: Id
    place: ImagePlace
    read_only: bool


class ImageUnwritten(FieldList):
    """An output without values by its number, and the executor that will write it."""

    id: Id
    executor: Id


class ImageDataset(FieldList):
    """A dataset by its number; the block `present` has a byte for each row."""

    id: Id
    present: Blocks
    place: ImagePlace


class ImageProgress(FieldList):
    """See RunProgress; `values` is a block."""

    layout: str
    values: Blocks | None
    flags: Annotated[list[bool], Field(min_length=3, max_length=3)]
    forwards: Size
    backwards: Size
    streams: RunPlace | None


class BoundPlaces(Strict):
    """The numbers that an executor was bound with (`Bind`)."""

    args: IdsByName
    grads: IdsByName
    grad_req: dict[str, str]
    aux: IdsByName
    outputs: IdsOrNone
    eliminate_common_expr: bool


class ImageExecutor(Strict):
    """An executor, its arrays by kind and name ("arg:weight"), and its outputs."""

    id: Id
    graph: dict[str, Any]
    bound: dict[str, ImagePlace]
    outputs: list[ImagePlace]
    places: BoundPlaces
    progress: ImageProgress


class ImageSource(SourcePlace):
    """See `RandomSource.state`; the device's generator reads its own `stream`."""

    stream: dict[str, Any]


class ImagePlan(Strict):
    """See CheckpointPlan."""

    name: str
    arrays: IdsByName
    executors: list[Id]
    every: Size
    step: Size
    position: Position | None
    saved: Size | None
    current: bool
    generation: Size | None


class ImageHeader(Strict):
    """The header of an image."""

    arrays: Annotated[list[ImageArray], InPieces()]
    unwritten: Annotated[list[ImageUnwritten], InPieces()]
    datasets: Annotated[list[ImageDataset], InPieces()]
    executors: Annotated[list[ImageExecutor], InPieces()]
    order: Annotated[list[Id], InPieces()]
    graphs: dict[str, dict[str, Any]]
    random: ImageSource
    steps: Size
    profile: dict[str, Any] | None
    plan: ImagePlan | None


def check_places(header: ImageHeader, sizes: Sequence[int], max_rank: int) -> None:
    """Raise BadRequestError unless each array is within its block, and each number is one entry's.

    Args:
        header: of the image.
        sizes: bytes of the blocks.
        max_rank: the most dimensions of an array.
    """
    ids = [array.id for array in header.arrays]
    ids += [dataset.id for dataset in header.datasets]
    ids += [executor.id for executor in header.executors]
    if sorted(ids) != sorted(set(header.order)) or len(ids) != len(header.order):
        raise BadRequestError(f"order: expected each of {len(ids)} numbers once, got {len(header.order)} others")
    for place in _places(header):
        if len(place.shape) > max_rank or len(place.strides) != len(place.shape):
            raise BadRequestError(
                f"an array: expected at most {max_rank} dimensions with a stride each, got {len(place.shape)} and "
                f"{len(place.strides)} strides"
            )
        steps = [(length - 1) * stride for length, stride in zip(place.shape, place.strides, strict=True)]
        empty = 0 in place.shape
        low = place.offset + (0 if empty else sum(min(step, 0) for step in steps))
        high = place.offset
        if not empty:
            high += sum(max(step, 0) for step in steps) + DATATYPES[place.datatype].itemsize
        size = sizes[place.block] if place.block < len(sizes) else -1
        if low < 0 or high > size:
            raise BadRequestError(f"an array: expected bytes {low} to {high} of block {place.block}, got {size} bytes")
    for dataset in header.datasets:
        rows = dataset.place.shape[:1] or [-1]
        if dataset.present >= len(sizes) or [sizes[dataset.present]] != rows:
            raise BadRequestError(f"dataset {dataset.id}: expected a byte for each of {rows[0]} rows, got others")
    for executor in header.executors:
        values = executor.progress.values
        if values is not None and values >= len(sizes):
            raise BadRequestError(f"executor {executor.id}: expected one of {len(sizes)} blocks, got {values}")


def _places(header: ImageHeader) -> Iterator[ImagePlace]:
    yield from (array.place for array in header.arrays)
    yield from (dataset.place for dataset in header.datasets)
    for executor in header.executors:
        yield from executor.bound.values()
        yield from executor.outputs
