"""Arrays from whose rows iterators make batches: their values, in the type in which they travel, and their hashes."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from opbox_protocol.commands import Dataset

__all__ = ["BLOCK_BYTES", "RowSource"]

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 4 << 20
"""About how many bytes a block has: rows are stored, and found again, by whole blocks."""
SMALL_TYPES = frozenset(map(np.dtype, ("bool", "uint8", "int8", "float16")))
"""Types whose values float32 has exactly: they travel as they are, and are cast where they arrive."""
TRAVELLING = frozenset(map(np.dtype, ("float32", "float64", "uint8", "int8", "int32", "int64", "bool", "float16")))
"""Types that a dataset on a server may have."""


class RowSource:
    """An array whose first axis are rows, or samples.

    Args:
        values: the rows, which nobody changes.
        dtype: the type that batches have; by default that of the values.
        scale: batches have the values times this, in their type.

    Attributes:
        shape, dtype: of all rows, as batches have them.
        is_named: whether a server has them under a name.

    Example:
        >>> RowSource(images, np.float32, 1 / 256).batch(slice(0, 100)).dtype
        dtype('float32')
    """

    is_named: ClassVar[bool] = False

    def __init__(self, values: Array, dtype: Any = None, scale: float = 1.0) -> None:
        self._values = values
        self._shared = False
        self.dtype: np.dtype[Any] = np.dtype(values.dtype if dtype is None else dtype)
        self.scale = scale

    @classmethod
    def of(cls, values: Any) -> RowSource:
        """The rows of values that become float32; they keep their own type if that is smaller and loses nothing.

        Values of float32 are not copied, unless a server is sent rows of them (`freeze`).

        Raises:
            TypeError, ValueError: values that are no numbers.
        """
        plain = values if isinstance(values, np.ndarray) else np.asarray(values)
        stored = plain.dtype if plain.dtype in SMALL_TYPES else np.dtype(np.float32)
        if stored != np.float32:
            return cls(np.array(plain, order="C", copy=True, ndmin=1), np.float32)
        source = cls(np.ascontiguousarray(plain, np.float32), np.float32)
        source._shared = np.may_share_memory(source._values, plain) and not isinstance(values, np.memmap)
        return source

    def freeze(self) -> None:
        """Copy the values if their owner may change them: later batches come from what the server was sent."""
        if self._shared:
            self._values, self._shared = self._values.copy(), False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows together."""
        shape: tuple[int, ...] = self._values.shape
        return shape

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The type in which rows travel."""
        dtype: np.dtype[Any] = self._values.dtype
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, as they travel."""
        return math.prod(self.shape) * self.stored_dtype.itemsize

    def batch(self, rows: slice | Array, axis: int = 0) -> Array:
        """The values of rows, as a batch has them: a view where nothing has to be gathered or cast."""
        if isinstance(rows, slice):
            values = self._values[(slice(None),) * axis + (rows,)]
        else:
            values = self._values.take(rows, axis)
        values = values.astype(self.dtype, copy=False)
        return values if self.scale == 1.0 else values * values.dtype.type(self.scale)

    def stored_rows(self, rows: slice | Array) -> Array:
        """The values of rows, as they travel."""
        return self._values[rows]

    # -- blocks ---------------------------------------------------------------------------------------------------

    @property
    def travels(self) -> bool:
        """Whether a server can have these rows as a dataset."""
        return self.stored_dtype in TRAVELLING and len(self.shape) > 0 and self.nbytes > 0

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return max(1, BLOCK_BYTES // max(1, self.nbytes // max(1, self.shape[0])))

    @property
    def block_count(self) -> int:
        """Number of blocks; the last one may have fewer rows."""
        return math.ceil(self.shape[0] / self.block_rows)

    @cached_property
    def first_block(self) -> str:
        """The first block's name. A store that lacks it is asked for no other."""
        return self._block_name(0)

    @cached_property
    def blocks(self) -> list[str]:
        """The names of all blocks: SHA-256 of their bytes."""
        return [self.first_block, *(self._block_name(number) for number in range(1, self.block_count))]

    def opening(self, id: int, known: bool) -> Dataset:
        """The command that opens these rows as the dataset `id` of a session.

        Args:
            known: whether the owner's store has the first block, and perhaps the others.
        """
        return {
            "do": "dataset",
            "id": id,
            "shape": list(self.shape),
            "dtype": self.stored_dtype.name,
            "block_rows": self.block_rows,
            "blocks": self.blocks if known else [],
        }

    def block(self, number: int) -> Array:
        """The rows of a block, as they travel."""
        return self._values[number * self.block_rows : (number + 1) * self.block_rows]

    def _block_name(self, number: int) -> str:
        data = memoryview(np.ascontiguousarray(self.block(number)).reshape(-1).view(np.uint8).data)
        return hashlib.sha256(data).hexdigest()
