"""ClusterNode: what the controller knows of a node, and the memory that is free there once what is promised is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .documents import NodeInfo, NodeReport, NodeState, ReplicaReport, SessionReport, Shares

__all__ = ["USUAL_BYTES", "ClusterNode", "PendingSession"]

USUAL_BYTES = 64 << 20
"""Bytes of a device that are promised to a session which does not say how many it needs, until it is reported."""


class PendingSession(NamedTuple):
    """A session that was placed on a node, and that the node has not reported yet.

    Attributes:
        wish: id of its wish.
        owner, device: whose, and where.
        bytes: that were promised.
        declared: those that the wish said.
    """

    wish: str
    owner: str
    device: str
    bytes: int
    declared: int


@dataclass(slots=True)
class ClusterNode:
    """A node that has joined.

    Attributes:
        info, state: see their classes.
        reported: when the last report came.
        report_s: seconds after which the next one is wanted, as the node was told.
        report: that report, as it came; None before the first.
        sessions: by id.
        used: by owner and quota, what owners use here.
        models: by name, those that are loaded or being loaded here.
        claims: by id of a session, the bytes that its wish declared.
        replicas: by model, device and bytes that a replica is promised which is not ready yet.
        number: of the next orders.
        known: number of the orders since which a report may say changes; 0: it has to have everything.
        moved: ids of sessions that go on elsewhere, and have to end here.
    """

    info: NodeInfo
    reported: float
    state: NodeState = "ready"
    report_s: float = 1.0
    report: NodeReport | None = None
    sessions: dict[str, SessionReport] = field(default_factory=dict)
    used: dict[str, Mapping[str, float]] = field(default_factory=dict)
    models: dict[str, ReplicaReport] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, tuple[str, int]] = field(default_factory=dict)
    number: int = 1
    known: int = 0
    moved: dict[str, None] = field(default_factory=dict)
    _pending: dict[tuple[str, str], deque[PendingSession]] = field(default_factory=dict)
    _promised: dict[str, int] = field(default_factory=dict)
    _unused: dict[str, int] = field(default_factory=dict)

    @property
    def has_sessions(self) -> bool:
        """Whether sessions are here, or have been placed here."""
        return bool(self.sessions or self._pending)

    @property
    def queue(self) -> int:
        """Requests that wait there."""
        return self.report.queue if self.report is not None else 0

    def free(self, device: str) -> int:
        """Bytes of a device that are neither used nor promised."""
        free = (self.info.devices if self.report is None else self.report.free).get(device, 0)
        free -= self._promised.get(device, 0) + self._unused.get(device, 0)
        if self.replicas:
            free -= sum(nbytes for name, nbytes in self.replicas.values() if name == device)
        return max(0, free)

    def promise(self, pending: PendingSession) -> None:
        """Count a session that was placed here."""
        self._pending.setdefault((pending.owner, pending.device), deque()).append(pending)
        self._promise(pending.device, pending.bytes)

    def withdraw(self, wish: str, owner: str, device: str) -> PendingSession | None:
        """Count a placed session no longer; None if it has been reported or withdrawn."""
        line = self._pending.get((owner, device), deque())
        for pending in line:
            if pending.wish == wish:
                line.remove(pending)
                self._promise(device, -pending.bytes)
                if not line:
                    del self._pending[owner, device]
                return pending
        return None

    def pending(self) -> Iterator[PendingSession]:
        """The sessions that were placed here and are not reported yet."""
        for line in self._pending.values():
            yield from line

    def pending_needs(self) -> dict[str, dict[str, float]]:
        """What those need of their owners' quotas, by owner and quota."""
        needs: dict[str, dict[str, float]] = {}
        for pending in self.pending():
            row = needs.setdefault(pending.owner, {"sessions": 0, "memory_bytes": 0})
            row["sessions"] += 1
            row["memory_bytes"] += pending.declared
        return needs

    def take(
        self, report: NodeReport, now: float
    ) -> tuple[list[SessionReport], list[SessionReport], list[PendingSession]]:
        """Take a report.

        Returns:
            The sessions that are new, those that have ended, and the placed ones that are among the new.
        """
        before, self.report, self.reported = self.report, report, now
        new: list[SessionReport] = []
        ended: list[SessionReport] = []
        if report.since and before is not None:
            new = [session for session in report.sessions if session.id not in self.sessions]
            ended = [self.sessions[id] for id in report.ended if id in self.sessions]
            for session in report.sessions:
                self._enter(session)
            self._take_use(report.used)
            self.models.update(report.models)
            for name in report.unloaded:
                self.models.pop(name, None)
        else:
            self.used, self.models = dict(report.used), dict(report.models)
            if before is None or before.since or before.sessions != report.sessions:
                sessions = {session.id: session for session in report.sessions}
                new = [session for id, session in sessions.items() if id not in self.sessions]
                ended = [session for id, session in self.sessions.items() if id not in sessions]
                for session in sessions.values():
                    self._enter(session)
        for session in ended:
            self._remove(session)
        opened = [pending for session in new if (pending := self._open(session)) is not None]
        return new, ended, opened

    def forget(self) -> None:
        """Forget all that was here but places of sessions that are not reported yet."""
        self.sessions, self.used, self.claims, self.replicas, self.moved = {}, {}, {}, {}, {}
        self.models, self._unused = {}, {}

    def _take_use(self, changed: Shares) -> None:
        for owner, row in changed.items():
            if row:
                self.used[owner] = row
            else:
                self.used.pop(owner, None)

    def _enter(self, session: SessionReport) -> None:
        """Take what a session uses, and with that, what it has declared and does not use yet."""
        declared = self.claims.get(session.id, 0)
        if declared:
            self._leave_unused(self.sessions[session.id], -declared)
            self._leave_unused(session, declared)
        self.sessions[session.id] = session

    def _remove(self, session: SessionReport) -> None:
        del self.sessions[session.id]
        self.moved.pop(session.id, None)
        declared = self.claims.pop(session.id, 0)
        if declared:
            self._leave_unused(session, -declared)

    def _leave_unused(self, session: SessionReport, declared: int) -> None:
        """Count what a session declared and does not use; of less than 0, count it no longer."""
        unused = max(0, abs(declared) - session.bytes)
        if unused:
            unused = unused if declared > 0 else -unused
            self._unused[session.device] = self._unused.get(session.device, 0) + unused

    def _open(self, session: SessionReport) -> PendingSession | None:
        """Count a placed session as the one that is reported now; None if none was placed."""
        line = self._pending.get((session.owner, session.device))
        if not line:
            return None
        pending = line.popleft()
        if not line:
            del self._pending[session.owner, session.device]
        self._promise(pending.device, -pending.bytes)
        if pending.declared:
            self.claims[session.id] = pending.declared
            self._leave_unused(session, pending.declared)
        return pending

    def _promise(self, device: str, nbytes: int) -> None:
        self._promised[device] = self._promised.get(device, 0) + nbytes

    # -- state --------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON."""
        info, report = self.info, self.report
        return {
            "info": [info.name, info.url, dict(sorted(info.devices.items())), info.version],
            "state": self.state,
            "reported": self.reported,
            "report_s": self.report_s,
            "number": self.number,
            "free": None if report is None else dict(sorted(report.free.items())),
            "queue": self.queue,
            "sessions": sorted(map(list, self.sessions.values())),
            "claims": dict(sorted(self.claims.items())),
            "replicas": {name: list(row) for name, row in sorted(self.replicas.items())},
            "pending": [list(pending) for _, line in sorted(self._pending.items()) for pending in line],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> ClusterNode:
        """The node that had this state."""
        name, url, devices, version = state["info"]
        node = cls(NodeInfo(name, url, devices, version), state["reported"], state["state"], state.get("report_s", 1.0))
        sessions = tuple(SessionReport(*row) for row in state["sessions"])
        node.sessions = {session.id: session for session in sessions}
        node.claims, node.number = dict(state["claims"]), state["number"]
        node.replicas = {name: (device, nbytes) for name, (device, nbytes) in state["replicas"].items()}
        for row in state["pending"]:
            node.promise(PendingSession(*row))
        if state["free"] is not None:
            node.report = NodeReport(state["free"], sessions, queue=state["queue"])
        for id, declared in node.claims.items():
            node._leave_unused(node.sessions[id], declared)
        return node
