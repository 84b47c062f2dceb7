"""All-reduce: every rank gets the sum of all ranks' arrays, the same bits on each.

A reduce-scatter and an all-gather, each in one exchange between all pairs: rank j gets the j-th piece of every rank and
adds them up in the ranks' order, then sends the sum to all. Every rank sends and receives 2 (n - 1) / n of the arrays'
bytes, as in a ring, in 2 messages instead of 2 (n - 1), and the order of a sum does not depend on the piece.

Arrays are packed into buckets, so that a step's many small gradients are one message, and scratch is bounded.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from opbox_protocol.errors import BadRequestError

from .membership import Membership

__all__ = ["BUCKET_BYTES", "all_reduce"]

BUCKET_BYTES = 16 << 20
"""Maximum bytes of a bucket; the scratch of an all-reduce is at most two."""
_HEAD = struct.Struct("<Q24s")
Array = npt.NDArray[Any]


def all_reduce(
    member: Membership, arrays: Sequence[Array], outputs: Sequence[Array], check: Callable[[], None]
) -> None:
    """Write the sums over all ranks of `arrays` to `outputs`.

    Args:
        member: this rank.
        arrays: the same number, shapes and types on all ranks.
        outputs: contiguous arrays of these shapes and types.
        check: raises what the call has been stopped with.

    Raises:
        PeerLostError: a rank has ended.
        BadRequestError: the ranks have other arrays.
    """
    _check_same(member, arrays, check)
    for dtype, pieces in _buckets(arrays, outputs):
        count = sum(source.size for source, _ in pieces)
        bucket = np.empty(count, dtype)
        place = 0
        for source, _ in pieces:
            bucket[place : place + source.size] = source
            place += source.size
        _reduce(member, bucket, check)
        place = 0
        for _, target in pieces:
            target[...] = bucket[place : place + target.size]
            place += target.size


def _buckets(arrays: Sequence[Array], outputs: Sequence[Array]) -> Iterator[tuple[Any, list[tuple[Array, Array]]]]:
    """Pieces of arrays with their outputs' places, by type, as many as fit into a bucket."""
    by_type: dict[Any, list[tuple[Array, Array]]] = {}
    for array, output in zip(arrays, outputs, strict=True):
        by_type.setdefault(array.dtype, []).append((array.reshape(-1), output.reshape(-1)))
    for dtype, pairs in by_type.items():
        most = max(1, BUCKET_BYTES // dtype.itemsize)
        bucket: list[tuple[Array, Array]] = []
        free = most
        for array, output in pairs:
            begin = 0
            while begin < array.size:
                end = min(array.size, begin + free)
                bucket.append((array[begin:end], output[begin:end]))
                free -= end - begin
                begin = end
                if not free:
                    yield dtype, bucket
                    bucket, free = [], most
        if bucket:
            yield dtype, bucket


def _check_same(member: Membership, arrays: Sequence[Array], check: Callable[[], None]) -> None:
    """Wait for all ranks, and compare what they bring: with other arrays they would wait for each other for ever."""
    text = repr([(array.shape, array.dtype.str) for array in arrays])
    member.rounds += 1
    head = _HEAD.pack(member.rounds, hashlib.sha256(text.encode()).digest()[:24])
    others = member.others
    heads = {rank: bytearray(_HEAD.size) for rank in others}
    member.exchange(
        {rank: [memoryview(head)] for rank in others}, {rank: [memoryview(heads[rank])] for rank in others}, check
    )
    for rank in others:
        if heads[rank] != head:
            member.break_off("its arrays are not those of the others")
            raise BadRequestError(
                f"all_reduce: expected the same arrays on all ranks, in the same order, got others on rank {rank} than "
                f"on rank {member.rank}"
            )


def _reduce(member: Membership, bucket: Array, check: Callable[[], None]) -> None:
    """Sum a bucket over all ranks, in place."""
    size, own, others = member.size, member.rank, member.others
    bounds = [bucket.size * rank // size for rank in range(size + 1)]
    pieces = [bucket[begin:end] for begin, end in pairwise(bounds)]
    received = {rank: np.empty(pieces[own].size, bucket.dtype) for rank in others}
    member.exchange(
        {rank: [_bytes(pieces[rank])] for rank in others}, {rank: [_bytes(received[rank])] for rank in others}, check
    )
    received[own] = pieces[own]
    pieces[own][...] = _sum([received[rank] for rank in range(size)])
    member.exchange(
        {rank: [_bytes(pieces[own])] for rank in others}, {rank: [_bytes(pieces[rank])] for rank in others}, check
    )


def _sum(arrays: Sequence[Array]) -> Array:
    """The sum in this order; 16-bit floats are added up in float32 and rounded once."""
    dtype = arrays[0].dtype
    is_half = dtype.itemsize == 2 and dtype.kind not in "iu"
    total = arrays[0].astype(np.float32 if is_half else dtype)
    for array in arrays[1:]:
        total += array.astype(np.float32) if is_half else array
    return total.astype(dtype, copy=False)


def _bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data
