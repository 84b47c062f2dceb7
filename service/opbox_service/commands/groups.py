"""Groups of sessions: join_group, connect_group, all_reduce."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from opbox_ops.compute import Array
from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError, QuotaError, UnsupportedError

from ..executor import BoundPlan
from ..executor.allocation import allocate
from ..groups import BegunSum, DeviceSums, GroupAddress, Membership, agree, all_reduce, exchange_sums
from ..task import away, current
from ..validation import Expected, InPieces
from .array_table import ArrayTable
from .command import Command, Exchange, Id, Ids, TypedCommand

__all__ = ["COMMANDS", "GroupEntry", "abandon_sum", "begin_sum"]

MAX_RANKS = 256
MAX_GROUPS = 8
"""Maximum number of groups of a session; each has a socket for every other rank, twice."""
MIN_BEGUN_BYTES = 8 << 20
"""Minimum bytes of gradients whose sum begins before backward ends: of few buckets the last is most of the sum."""
_REDUCIBLE = "fiuV"
"""Kinds of types that are added up: floats, integers and bfloat16."""


class GroupEntry:
    """A session's membership of a group; its end closes the connections.

    Attributes:
        member: the membership.
        on_devices: its sums on GPUs.
    """

    __slots__ = ("member", "on_devices")
    kind = "a group"

    def __init__(self, member: Membership) -> None:
        self.member = member
        self.on_devices = DeviceSums(member)

    def drop(self) -> int:
        """Leave the group. Returns 0: it has no memory that stays."""
        self.member.close()
        return 0


class JoinGroup(Command):
    """Become a rank of a group, and listen for the others; the result has the `address` that they need.

    Ranks prove to each other that they have the secret, and send it to nobody.
    """

    changes_arrays: ClassVar[bool] = False

    do: Literal["join_group"]
    id: Id
    rank: Annotated[int, Field(ge=0, lt=MAX_RANKS)]
    size: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    secret: Annotated[
        str,
        Field(pattern=r"^[0-9a-f]{64}$", description="32 random bytes in hexadecimal."),
        Expected("64 hexadecimal digits"),
    ]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(self.id)
        if self.rank >= self.size:
            raise BadRequestError(f"join_group: rank: expected one below the size {self.size}, got {self.rank}")
        address = GroupAddress.of(table.group_host, table.group_ports)
        if sum(isinstance(entry, GroupEntry) for entry in table.entries().values()) >= MAX_GROUPS:
            raise QuotaError(f"join_group: expected at most {MAX_GROUPS} groups of a session, got one more: free some")
        try:
            member = Membership(address, self.rank, self.size, bytes.fromhex(self.secret))
        except PermissionError as error:
            raise UnsupportedError(
                "join_group: expected a session without code of its own, got one in a confined process, which has no "
                "network: train with built-in operators, or without a store of several workers"
            ) from error
        table.add(self.id, GroupEntry(member))
        exchange.report(address=member.address)


class ConnectGroup(Command):
    """Connect with all other ranks; waits for them."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["connect_group"]
    id: Id
    addresses: Annotated[list[str], InPieces(), Field(description="Of all ranks, in their order.")]
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        member = _member(table, self.id)
        with away() as check:
            member.connect(self.addresses, self.timeout_s, check)
        exchange.report(rank=member.rank, size=member.size)


class AllReduce(Command):
    """Sum arrays over all ranks of a group into new arrays, with the same bits on each rank; waits for the others.

    Without arrays it is a barrier. All ranks must run it with arrays of the same shapes and types, in the same order.
    Right behind a `backward`, the sum of large gradients begins before that has ended.
    """

    do: Literal["all_reduce"]
    group: Id
    arrays: Ids = []
    outputs: Ids = []

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        begun, table.begun_sum = table.begun_sum, None
        if begun is not None:
            with away() as check:
                begun.finish(check)
            for id, total in zip(self.outputs, begun.outputs, strict=True):
                table.keep(id, total)
            return
        member, arrays = self.checked(table)
        backend = table.backend
        sums = [allocate(backend, tuple(array.shape), array.dtype, overwritten=True) for array in arrays]
        if backend.device_type == "cpu":
            with away() as check:
                all_reduce(member, arrays, sums, check)
        else:
            self._on_devices(table, member, arrays, sums)
        for id, total in zip(self.outputs, sums, strict=True):
            table.keep(id, total)

    def _on_devices(self, table: ArrayTable, member: Membership, arrays: list[Array], sums: list[Any]) -> None:
        """Sum arrays of a GPU: by NCCL where all ranks can, or through the machine's memory."""
        backend, on_devices = table.backend, _entry(table, self.group).on_devices
        with backend.scope():
            sources = [backend.xp.ascontiguousarray(array).reshape(array.shape) for array in arrays]
        offers = table.group_nccl and on_devices.can(backend, arrays)
        with away() as check:
            if agree(member, arrays, offers, check) and on_devices.sum(backend, sources, sums, check):
                return
        try:
            hosts = [backend.get(array) for array in sources]
            totals = [np.empty(array.shape, array.dtype) for array in hosts]
        except BaseException as error:  # the others have been told that these arrays come
            member.break_off(f"its arrays do not come: {error}")
            raise
        with away() as check:
            exchange_sums(member, hosts, totals, check)
        for total, result in zip(totals, sums, strict=True):
            backend.write(result, total)

    def checked(self, table: ArrayTable) -> tuple[Membership, list[Array]]:
        """The group's membership, and the arrays.

        Raises:
            MXNetError: the command does not fit.
        """
        table.reserve(*self.outputs)
        member = _member(table, self.group)
        arrays = [table.read(id) for id in self.arrays]
        if len(arrays) != len(self.outputs):
            raise BadRequestError(f"all_reduce: outputs: expected {len(arrays)} ids, got {len(self.outputs)}")
        for id, array in zip(self.arrays, arrays, strict=True):
            if np.dtype(array.dtype).kind not in _REDUCIBLE:
                raise BadRequestError(f"all_reduce: array {id}: expected numbers, got {array.dtype}")
        return member, arrays


def begin_sum(table: ArrayTable, executor: BoundPlan, following: TypedCommand | None) -> None:
    """Begin the sum behind a backward before that runs, as `table.begun_sum`, where it can be told when gradients end.

    Args:
        table: of the commands' device.
        executor: runs backward.
        following: the command behind it. One that does not fit fails in its own time.
    """
    if not isinstance(following, AllReduce) or table.backend.device_type != "cpu" or table.nodes_profile is not None:
        return
    if not executor.ready:
        return
    try:
        member, arrays = following.checked(table)
        if sum(int(array.nbytes) for array in arrays) < MIN_BEGUN_BYTES or not member.connected:
            return
        ends = [executor.gradient_ends.get(id(array), -1) for array in arrays]
        if min(ends) < 0 or max(ends) == min(ends):
            return
        sums = [allocate(table.backend, tuple(array.shape), array.dtype, overwritten=True) for array in arrays]
    except MXNetError:
        return
    task = current()

    def check() -> None:
        if task is not None and task.stopped is not None:
            raise task.stopped

    table.begun_sum = BegunSum(member, arrays, sums, ends, check)


def abandon_sum(table: ArrayTable, error: BaseException) -> None:
    """End a sum that has begun, as an error has stopped the batch; the other ranks get the reason."""
    begun, table.begun_sum = table.begun_sum, None
    if begun is not None:
        begun.abandon(error)


def _member(table: ArrayTable, id: int) -> Membership:
    return _entry(table, id).member


def _entry(table: ArrayTable, id: int) -> GroupEntry:
    entry = table.holder_of(id).entries().get(id)
    if isinstance(entry, GroupEntry):
        return entry
    got = "nothing" if entry is None else entry.kind
    raise NotFoundError(
        f"group {id}: expected one joined in this session, got {got}: who has lost a session has left its groups"
    )


COMMANDS = (JoinGroup, ConnectGroup, AllReduce)
