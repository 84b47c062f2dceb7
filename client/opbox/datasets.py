"""Datasets that stay on the server under a name, for later programs and for a team: `mx.datasets`.

    mx.datasets.put("mnist", {"data": images, "softmax_label": labels}, published=True)
    train = mx.io.NDArrayIter(mx.datasets.get("mnist"), batch_size=100, shuffle=True)

Values travel once, in the type that they have, and blocks that the server's store has do not travel at all.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol import routes
from opbox_protocol.errors import NotFoundError
from opbox_protocol.near_names import near_names

from . import connection
from .base import value_text
from .foreign import is_array
from .io.row_source import TRAVELLING, RowSource
from .io.stored_dataset import StoredDataset

__all__ = ["StoredDataset", "delete", "get", "list", "put"]

ASKED = 1000
"""Number of blocks to ask for in one request."""


def put(name: str, arrays: Any, published: bool = False) -> StoredDataset:
    """Store arrays on the server under a name, in place of a dataset that has it.

    Args:
        name: up to 64 letters, digits, dots, dashes and underlines.
        arrays: an array, or a dict of arrays by name, with equally many rows. NumPy's arrays of uint8, int8, bool and
            float16 keep their type, others become float32; NDArrays keep theirs.
        published: whether other owners on the server may read it, as "owner/name".

    Raises:
        TypeError: no arrays.
        ValueError: arrays of different lengths, or without rows.
        BadRequestError: a name that no dataset can have.
        StorageError: the quota (OPBOX_MAX_DATASET_BYTES) has no space for them.

    Example:
        >>> mx.datasets.put("mnist", {"data": images, "softmax_label": labels})
    """
    sources = _sources(arrays)
    transport = connection.transport()
    for array_name, source in sources.items():
        blocks = source.blocks
        for start in range(0, len(blocks), ASKED):
            part = blocks[start : start + ASKED]
            missing = transport.call("POST", routes.BLOCKS, {"blocks": part}).header["missing"]
            for position in missing:
                rows = source.block(start + position)
                transport.call("PUT", routes.BLOCK.format(block=part[position]), {}, {array_name: rows})
    described = {
        array_name: {
            "shape": builtins.list(source.shape),
            "dtype": source.stored_dtype.name,
            "block_rows": source.block_rows,
            "blocks": source.blocks,
        }
        for array_name, source in sources.items()
    }
    transport.call("PUT", routes.DATASET.format(dataset=name), {"arrays": described, "published": bool(published)})
    return get(name)


def get(name: str) -> StoredDataset:
    """A dataset of yours by its name, or a published one as "owner/name". No values travel.

    Raises:
        NotFoundError: there is none.

    Example:
        >>> mx.datasets.get("mnist")["data"].shape
        (60000, 1, 28, 28)
    """
    datasets = list()
    for dataset in datasets:
        if name in (dataset.reference, f"{dataset.owner}/{dataset.name}"):
            return dataset
    near = near_names(name, [dataset.reference for dataset in datasets])
    meant = f": did you mean {' or '.join(near)}?" if near else ": mx.datasets.list() has the names"
    raise NotFoundError(f"dataset {name!r}: expected one of yours, or a published one as owner/name, got none{meant}")


def list() -> builtins.list[StoredDataset]:
    """Your datasets, and those that others have published.

    Example:
        >>> [dataset.name for dataset in mx.datasets.list()]
        ['mnist']
    """
    answer = connection.transport().call("GET", routes.DATASETS).header
    return [StoredDataset(row) for row in answer["datasets"]]


def delete(name: str) -> None:
    """Delete a dataset of yours. Sessions that use it keep their rows.

    Raises:
        NotFoundError: there is none.
    """
    connection.transport().call("DELETE", routes.DATASET.format(dataset=name))


def _sources(arrays: Any) -> dict[str, RowSource]:
    if is_array(arrays):
        arrays = {"data": arrays}
    if not isinstance(arrays, Mapping) or not arrays:
        raise TypeError(f"arrays: expected an array, or a dict of arrays by name, got {value_text(arrays)}")
    sources: dict[str, RowSource] = {}
    for name, values in arrays.items():
        if not isinstance(name, str):
            raise TypeError(f"arrays: expected names of arrays, got {value_text(name)}")
        if not is_array(values):
            raise TypeError(f"arrays: {name}: expected an array, got {value_text(values)}")
        own = hasattr(values, "asnumpy")
        try:
            source = RowSource(np.ascontiguousarray(values.asnumpy())) if own else RowSource.of(values)
        except (TypeError, ValueError):
            raise TypeError(f"arrays: {name}: expected numbers, got {value_text(values)}") from None
        if source.stored_dtype not in TRAVELLING or not source.nbytes:
            raise ValueError(f"arrays: {name}: expected rows of numbers, got shape {source.shape} of {source.dtype}")
        sources[name] = source
    rows = next(iter(sources.values())).shape[0]
    for name, source in sources.items():
        if source.shape[0] != rows:
            raise ValueError(f"arrays: {name}: expected {rows} rows as in {next(iter(sources))}, got {source.shape[0]}")
    return sources
