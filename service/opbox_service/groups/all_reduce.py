"""All-reduce: every rank gets the sum of all ranks' arrays, the same bits on each.

A reduce-scatter and an all-gather, each in one exchange between all pairs: rank j gets the j-th piece of every rank and
adds them up in the ranks' order, then sends the sum to all. Every rank sends and receives 2 (n - 1) / n of the arrays'
bytes, as in a ring, in 2 messages instead of 2 (n - 1), and the order of a sum does not depend on the piece.

Arrays are exchanged in buckets, so that a step's many small gradients are one message, and scratch is bounded. They are
sent from where they lie, and sums received where they are to be. The last array comes first: a network's last layers
have their gradients first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from opbox_protocol.errors import BadRequestError

from .membership import Membership

__all__ = ["BUCKET_BYTES", "Bucket", "agree", "all_reduce", "buckets_of", "exchange_sums"]

BUCKET_BYTES = 4 << 20
"""Maximum bytes of a bucket; the scratch of an all-reduce is one, rounded up."""
_HEAD = struct.Struct("<Q24s")
_OFFER = 1 << 63
"""Bit of a round's number: the rank can add up these arrays on its GPU."""
Array = npt.NDArray[Any]


@dataclass(slots=True)
class Bucket:
    """Pieces of arrays that are exchanged together.

    Attributes:
        dtype: of all.
        pieces: of one dimension, each with the place of its sum.
        arrays: the numbers of the arrays that they are of.
        size: elements of all pieces.
    """

    dtype: Any
    pieces: list[tuple[Array, Array]] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)
    size: int = 0

    def cut(self, begin: int, end: int) -> list[tuple[Array, Array]]:
        """The pieces of the elements from `begin` to `end`."""
        place, cut = 0, []
        for source, target in self.pieces:
            first, last = max(begin - place, 0), min(end - place, source.size)
            if first < last:
                cut.append((source[first:last], target[first:last]))
            place += source.size
        return cut


def all_reduce(
    member: Membership,
    arrays: Sequence[Array],
    outputs: Sequence[Array],
    check: Callable[[], None],
    wait: Callable[[Bucket], None] | None = None,
) -> None:
    """Write the sums over all ranks of `arrays` to `outputs`.

    Args:
        member: this rank.
        arrays: the same number, shapes and types on all ranks.
        outputs: contiguous arrays of these shapes and types, in other memory.
        check: raises what the call has been stopped with.
        wait: called before a bucket is sent; returns when its arrays have their values, or raises.

    Raises:
        PeerLostError: a rank has ended.
        BadRequestError: the ranks have other arrays.
    """
    agree(member, arrays, False, check)
    exchange_sums(member, arrays, outputs, check, wait)


def exchange_sums(
    member: Membership,
    arrays: Sequence[Array],
    outputs: Sequence[Array],
    check: Callable[[], None],
    wait: Callable[[Bucket], None] | None = None,
) -> None:
    """What `all_reduce` does when the ranks agree."""
    for bucket in buckets_of(arrays, outputs):
        if wait is not None:
            try:
                wait(bucket)
            except BaseException as error:
                member.break_off(f"its exchange was stopped: {error}")
                raise
        _reduce(member, bucket, check)


def buckets_of(arrays: Sequence[Array], outputs: Sequence[Array]) -> Iterator[Bucket]:
    """Buckets of arrays and their outputs, by type, each as full as it may be; the last array comes first."""
    by_type: dict[Any, list[int]] = {}
    for number in reversed(range(len(arrays))):
        by_type.setdefault(arrays[number].dtype, []).append(number)
    for dtype, numbers in by_type.items():
        most = max(1, BUCKET_BYTES // dtype.itemsize)
        bucket = Bucket(dtype)
        for number in numbers:
            array, output = np.ascontiguousarray(arrays[number]).reshape(-1), outputs[number].reshape(-1)
            begin = 0
            while begin < array.size:
                end = min(array.size, begin + most - bucket.size)
                bucket.pieces.append((array[begin:end], output[begin:end]))
                bucket.arrays.append(number)
                bucket.size += end - begin
                begin = end
                if bucket.size == most:
                    yield bucket
                    bucket = Bucket(dtype)
        if bucket.size:
            yield bucket


def agree(member: Membership, arrays: Sequence[Any], offers: bool, check: Callable[[], None]) -> bool:
    """Wait for all ranks, and compare what they bring: with other arrays they would wait for each other for ever.

    Args:
        member, arrays, check: as of `all_reduce`; the arrays may be on a GPU.
        offers: whether this rank can add them up on its GPU.

    Returns:
        whether all ranks can.

    Raises:
        PeerLostError: a rank has ended.
        BadRequestError: the ranks have other arrays.
    """
    text = repr([(tuple(array.shape), array.dtype.str) for array in arrays])
    member.rounds += 1
    digest = hashlib.sha256(text.encode()).digest()[:24]
    head = _HEAD.pack(member.rounds | offers * _OFFER, digest)
    others = member.others
    heads = {rank: bytearray(_HEAD.size) for rank in others}
    member.exchange(
        {rank: [memoryview(head)] for rank in others}, {rank: [memoryview(heads[rank])] for rank in others}, check
    )
    for rank in others:
        rounds, others_digest = _HEAD.unpack(heads[rank])
        offers = offers and bool(rounds & _OFFER)
        if (rounds & ~_OFFER, others_digest) != (member.rounds, digest):
            member.break_off("its arrays are not those of the others")
            raise BadRequestError(
                f"all_reduce: expected the same arrays on all ranks, in the same order, got others on rank {rank} than "
                f"on rank {member.rank}"
            )
    return offers


def _reduce(member: Membership, bucket: Bucket, check: Callable[[], None]) -> None:
    """Sum a bucket over all ranks."""
    size, own, others = member.size, member.rank, member.others
    bounds = [bucket.size * rank // size for rank in range(size + 1)]
    pieces = [bucket.cut(begin, end) for begin, end in pairwise(bounds)]
    count = bounds[own + 1] - bounds[own]
    received = {rank: np.empty(count, bucket.dtype) for rank in others}
    member.exchange(
        {rank: [_bytes(source) for source, _ in pieces[rank]] for rank in others},
        {rank: [_bytes(received[rank])] for rank in others},
        check,
    )
    place = 0
    for source, target in pieces[own]:
        end = place + source.size
        _add_up([source if rank == own else received[rank][place:end] for rank in range(size)], target)
        place = end
    member.exchange(
        {rank: [_bytes(target) for _, target in pieces[own]] for rank in others},
        {rank: [_bytes(target) for _, target in pieces[rank]] for rank in others},
        check,
    )


def _add_up(arrays: Sequence[Array], target: Array) -> None:
    """Write the sum in this order to `target`; 16-bit floats are added up in float32 and rounded once."""
    if target.dtype.itemsize == 2 and target.dtype.kind not in "iu":
        total = arrays[0].astype(np.float32)
        for array in arrays[1:]:
            total += array.astype(np.float32)
        target[...] = total
    elif len(arrays) == 1:
        target[...] = arrays[0]
    else:
        np.add(arrays[0], arrays[1], out=target)
        for array in arrays[2:]:
            target += array


def _bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data
