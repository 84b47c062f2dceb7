"""Getting a batch into the bound arrays: host arrays travel in the step's own request, device arrays are copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from opbox_protocol.errors import ValueShapeError

from ..foreign import host_values
from ..io import DataDesc
from ..io.host_array import HostArray
from ..io.rows_array import RowsArray
from ..ndarray import NDArray

__all__ = ["batch_named", "check_count", "label_value", "load_batch", "slice_of"]


def load_batch(bound: Mapping[str, NDArray], descs: Sequence[DataDesc], arrays: Sequence[Any]) -> None:
    """Write a batch's arrays to the bound ones that `descs` name, in this order.

    Raises:
        ValueError: another number of arrays than bound.
        ValueShapeError: an array of another shape than bound.
    """
    check_count(descs, arrays)
    for desc, array in zip(descs, arrays, strict=True):
        if desc.name not in bound:
            continue  # a label that the symbol does not use
        target = bound[desc.name]
        if isinstance(array, RowsArray) and array.shape == target.shape and array.write_to(target):
            continue
        if isinstance(array, HostArray) and array.here and array.shape == target.shape:
            # Nobody changes a batch's values, so they need no copy unless their type is another.
            target._write(array.host().astype(target.dtype, copy=False))
        else:
            target._fill(array, f"batch: {desc.name}")


def slice_of(values: Any, axis: int, part: slice) -> Any:
    """A device's slice of an array of any kind along its batch axis; all of it where the axis is -1."""
    if axis < 0:
        return values
    if isinstance(values, RowsArray) and values.here and not axis:
        return values.part(part)
    if isinstance(values, NDArray) and not (isinstance(values, HostArray) and values.here):
        sliced: NDArray = values.slice_axis(axis=axis, begin=part.start, end=part.stop)
        shape = values.shape
        sliced._shape = (*shape[:axis], part.stop - part.start, *shape[axis + 1 :])  # asking the engine would wait
        return sliced
    host = values.host() if isinstance(values, HostArray) else np.asarray(host_values(values))
    return HostArray(np.ascontiguousarray(host[(slice(None),) * axis + (part,)]))


@contextmanager
def batch_named(place: str) -> Iterator[None]:
    """Say which batch of an iterator it was, where one inside the block has another shape than bound.

    Args:
        place: "epoch 0, batch 3".
    """
    try:
        yield
    except ValueShapeError as error:
        sentence = error.message.removeprefix("batch: ")
        error.reword(
            f"{place}: {sentence}, as the module is bound: give batches of the iterator's provide_data and "
            "provide_label, or bind a module to the other shape"
        )
        raise


def check_count(descs: Sequence[DataDesc], arrays: Sequence[Any]) -> None:
    """ValueError unless there is an array for each description."""
    if len(arrays) != len(descs):
        names = ", ".join(desc.name for desc in descs)
        raise ValueError(f"batch: expected {len(descs)} arrays ({names}), got {len(arrays)}")


def label_value(label: Any) -> Any:
    """A label as a metric may keep it until later: what its owner may overwrite meanwhile is copied or fetched."""
    if isinstance(label, HostArray) and label.here:
        return label
    if isinstance(label, NDArray):
        return label._fetch_async()
    return HostArray(np.array(host_values(label)))
