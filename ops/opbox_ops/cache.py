"""Cutting work on large arrays into pieces that stay in the processor's cache.

Several NumPy calls in a row over a large array read it from memory as often; over a piece of it, from the cache.
"""

from __future__ import annotations

__all__ = [
    "CACHE_BYTES",
    "CHANNEL_BLOCK",
    "CHUNK_BYTES",
    "COLUMN_BYTES",
    "GPU_COLUMN_BYTES",
    "INDEX_PIECE",
    "REGION_PIECE",
    "SAMPLE_BLOCK",
    "WINDOW_TILE",
    "elements",
]

CACHE_BYTES = 1 << 19
"""Bytes that the arrays of one piece take together: half of a core's second-level cache of 1 MiB.

Measured with three formulas of three to four steps on arrays of 4 million elements: 256 KiB to 2 MiB are within a tenth
of the best, 32 KiB take three to five times as long (the calls themselves), and no cutting at all 1.1 to 1.6 times.
"""


def elements(bytes_each: int) -> int:
    """The number of elements in a piece of CACHE_BYTES, a multiple of 64.

    Args:
        bytes_each: bytes that one element takes in all arrays of the piece together.

    Example:
        >>> elements(8)  # one float64 array, or two of float32
        65536
    """
    return max(CACHE_BYTES // max(bytes_each, 1), 1024) // 64 * 64


CHANNEL_BLOCK = elements(4)
"""Elements of a block of channels: one array of float32, which later passes read again (batch normalization)."""
WINDOW_TILE = elements(8)
"""Output elements of a tile of windows: it and the inputs that the windows' taps read again, of float32 (pooling)."""
INDEX_PIECE = elements(8)
"""Positions, of int64, that are worked out at a time (sums at positions)."""
REGION_PIECE = elements(2)
"""Values of the regions that are compared at a time, of float16 (pooling of regions)."""
SAMPLE_BLOCK = 32 * elements(4)
"""Elements of the sampled columns of a few images (deformable convolution): for one product."""

COLUMN_BYTES = 8 << 20
"""Bytes of a block's columns and output, unless one output row of one sample already takes more (convolution)."""
GPU_COLUMN_BYTES = 256 << 20
"""The same on a GPU, which has no such cache and wants few large products."""
CHUNK_BYTES = 4 << 20
"""Bytes of a chunk's windows: twice that is far below the cache that two cores share (gradient of a weight)."""
