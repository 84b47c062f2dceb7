"""Documents that nodes, controller and gateway exchange. They are immutable, and hold only JSON's types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from opbox_protocol.errors import BadRequestError

__all__ = [
    "NODE_NAME",
    "QUOTAS",
    "Demand",
    "Directory",
    "DirectoryNode",
    "GoneSession",
    "ModelTerms",
    "NodeInfo",
    "NodeOrders",
    "NodeReport",
    "NodeState",
    "OwnerQuotas",
    "PlacedSession",
    "ReplicaReport",
    "Refused",
    "SessionReport",
    "SessionWish",
    "Shares",
    "Waiting",
    "kind_of",
]

NODE_NAME = r"[a-z0-9]{1,16}"
"""The name of a node: the beginning of its sessions' ids."""
QUOTAS = ("sessions", "memory_bytes", "worker_seconds")
"""Quotas that hold for all nodes together. The others (requests in flight, buffers) protect one server's process."""
NodeState: TypeAlias = Literal["ready", "draining", "drained", "lost"]
"""New sessions go to `ready` nodes only; `drained`: it has nothing left, and may be stopped."""
Shares: TypeAlias = Mapping[str, Mapping[str, float]]
"""By owner and quota: what the owner may have on one node."""


def kind_of(device: str) -> str:
    """Return the kind of a device: "gpu" of "gpu:1".

    Example:
        >>> kind_of("gpu:1"), kind_of("cpu")
        ('gpu', 'cpu')
    """
    return device.partition(":")[0]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as it joins.

    Attributes:
        name: see NODE_NAME.
        url: where clients reach it.
        devices: bytes of memory that sessions may use of each: {"cpu": ..., "gpu:0": ...}.
        version: opbox's.

    Raises:
        BadRequestError: the name is none, or a device has no memory.
    """

    name: str
    url: str
    devices: Mapping[str, int]
    version: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(NODE_NAME, self.name):
            raise BadRequestError(
                f"node: expected a name of 1 to 16 of a-z and 0-9, got {self.name!r}: give it another with --name"
            )
        for device, nbytes in self.devices.items():
            if nbytes <= 0:
                raise BadRequestError(f"node {self.name}: {device}: expected bytes of memory, got {nbytes}")


class SessionReport(NamedTuple):
    """A session that a node has: its id, owner, device and bytes in use."""

    id: str
    owner: str
    device: str
    bytes: int


class ReplicaReport(NamedTuple):
    """A model on a node: the versions that are ready there, and its requests in flight."""

    versions: tuple[str, ...]
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node has now; it reports once a second, or as often as the last orders say.

    Attributes:
        free: bytes of each device.
        sessions: all of them.
        models: by name, those that are loaded or being loaded (no version is ready then), whoever's they are.
        queue: requests that wait for a worker.
        used: by owner and quota of QUOTAS, what the owner uses here; owners that use nothing may be left out.
        refused: owners who were refused since the last report because their share here was used up.
        orders: number of the last orders that are in force here; 0: none yet.
        terms: of the models here whose model.toml has `replicas`.
        since: 0: it has everything. Else `sessions` and `models` have only those that are new or have changed, and
            `used` the owners whose use has, since the report that the orders of this number answered.
        ended, unloaded: with `since`, ids of sessions that have ended since then, and models that are not here now.
    """

    free: Mapping[str, int]
    sessions: tuple[SessionReport, ...] = ()
    models: Mapping[str, ReplicaReport] = field(default_factory=dict)
    queue: int = 0
    used: Shares = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    orders: int = 0
    terms: Mapping[str, ModelTerms] = field(default_factory=dict)
    since: int = 0
    ended: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeOrders:
    """The answer to a report: what the node has to do.

    Attributes:
        number: of these orders; the node's next report says it back once they are in force.
        shares: owners' new shares here, in place of those they had; owners that are not listed keep theirs.
        revisions: by owner of `shares`, the share's number; one that is not greater than the owner's last is older.
        load: (model, version) to load, "" for the version that its model.toml says.
        unload: (model, version) to unload; "" for all.
        end: ids of sessions to end, as they go on elsewhere.
        draining: whether it gets nothing new, and no replica is needed there: once all its sessions are such as store
            checkpoints, its server may stop, which stores them.
        full: whether the next report has to have everything, as the controller does not know what this one is based on.
        rejoin: whether the controller does not know it: it has to join again, and send all shares' use anew.
        report_s: seconds after which the next report is wanted.
    """

    number: int = 0
    shares: Shares = field(default_factory=dict)
    revisions: Mapping[str, int] = field(default_factory=dict)
    load: tuple[tuple[str, str], ...] = ()
    unload: tuple[tuple[str, str], ...] = ()
    end: tuple[str, ...] = ()
    draining: bool = False
    full: bool = False
    rejoin: bool = False
    report_s: float = 1.0


@dataclass(frozen=True, slots=True)
class SessionWish:
    """A session that somebody wants opened.

    Attributes:
        id: of the wish, chosen by who asks: 32 hex digits. Asking again with it asks for the same place.
        owner: whose it will be.
        device: "cpu", "gpu" for any GPU, or one such as "gpu:1".
        bytes: device memory that it needs; 0: unknown.
        after: id of the session that it goes on from, whose node was lost; "" for a new one.
        avoid: nodes that refused it or were not reached.

    Raises:
        BadRequestError: the bytes are negative.
    """

    id: str
    owner: str
    device: str = "cpu"
    bytes: int = 0
    after: str = ""
    avoid: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise BadRequestError(f"bytes: expected at least 0, got {self.bytes}: leave it out if you do not know")


@dataclass(frozen=True, slots=True)
class PlacedSession:
    """Where a session goes: open it there within `Controller.pending_s`, after which its memory is another's.

    Attributes:
        node, url, device: where; the device's own name, such as "gpu:0".
        shares: the owner's new share there, which has to reach the node before the session is opened; empty when the
            node has it already.
        number: of the orders that the node has reported in force; `shares` alone do not bring it to another.
        revision: of the share; see NodeOrders.
    """

    node: str
    url: str
    device: str
    shares: Shares = field(default_factory=dict)
    number: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """All devices that it fits on are full: ask again with the wish's id.

    Attributes:
        position: about how many sessions are opened before it, itself included.
        waiting: how many wait in all.
        retry_s: seconds after which to ask again. A wish that nobody asks for is forgotten.
        reason: a sentence for the user.
    """

    position: int
    waiting: int
    retry_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no place, and waiting would bring none.

    Attributes:
        status: 429: the owner has all that the quota allows; 503: no node has such a device or so much memory.
        reason: a sentence for the user.
    """

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class GoneSession:
    """A session that is on no node.

    Attributes:
        status: 404: nobody knows it; 410: its node was lost.
        reason: a sentence for the user.
        moved: id of the session that goes on from it; "" if none does.
    """

    status: int
    reason: str
    moved: str = ""


class DirectoryNode(NamedTuple):
    """A node of the directory."""

    url: str
    state: NodeState


@dataclass(frozen=True, slots=True)
class Directory:
    """What a gateway has to know to pass requests on. Equal versions are equal directories.

    Attributes:
        version: grows with each change.
        nodes: by name; lost ones too, for a while.
        models: by name, the nodes where a version is ready and requests may go. A model that somebody published has
            the name that all owners know it by, such as "ann.lenet".
        moved: by id of a lost session, the id of the one that goes on from it.
    """

    version: int
    nodes: Mapping[str, DirectoryNode]
    models: Mapping[str, tuple[str, ...]]
    moved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelTerms:
    """How many nodes serve a model: `replicas` of its model.toml.

    Attributes:
        minimum, maximum: replicas, at a time.
        target: requests in flight per replica, above which there is one more and below half of which one less.
        device: where it runs: "cpu", "gpu".
        bytes: memory of a replica; 0: unknown.
        version: "" for what its model.toml says; a new one goes replica by replica.

    Raises:
        BadRequestError: a number is out of range.
    """

    minimum: int = 1
    maximum: int = 1
    target: int = 8
    device: str = "cpu"
    bytes: int = 0
    version: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise BadRequestError(
                f"replicas: expected 0 <= min <= max and max >= 1, got min {self.minimum} and max {self.maximum}"
            )
        if self.target < 1:
            raise BadRequestError(f"replicas: target: expected at least 1 request, got {self.target}")
        if self.bytes < 0:
            raise BadRequestError(f"replicas: bytes: expected at least 0, got {self.bytes}")


@dataclass(frozen=True, slots=True)
class OwnerQuotas:
    """An owner's quotas over all nodes.

    Attributes:
        weight: share of turns, to others', when sessions wait.
        limits: by quota of QUOTAS; a quota that is missing has no limit.

    Raises:
        BadRequestError: the weight is not positive, or a quota is unknown or negative.
    """

    weight: float = 1.0
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise BadRequestError(f"weight: expected more than 0, got {self.weight:g}")
        for quota, limit in self.limits.items():
            if quota not in QUOTAS:
                raise BadRequestError(f"quotas: expected one of {', '.join(QUOTAS)}, got {quota!r}")
            if not limit >= 0:
                raise BadRequestError(f"quotas: {quota}: expected at least 0, got {limit:g}")


class Demand(NamedTuple):
    """Sessions that wait for a kind of device: how many, their bytes together, and the largest one's."""

    sessions: int
    bytes: int
    largest: int
