"""A controller with some nodes that report what the test says: no Ray, no servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opbox_service.cluster.controller import Controller, Outcome
from opbox_service.cluster.documents import (
    ModelTerms,
    NodeInfo,
    NodeOrders,
    NodeReport,
    PlacedSession,
    ReplicaReport,
    SessionReport,
    SessionWish,
)

MIB = 1 << 20
GIB = 1 << 30


@dataclass
class PretendNode:
    """A node as its server would report it. Orders come into force with the next report."""

    info: NodeInfo
    sessions: dict[str, SessionReport] = field(default_factory=dict)
    models: dict[str, tuple[str, ...]] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    used_seconds: dict[str, float] = field(default_factory=dict)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    orders: int = 0
    queue: int = 0
    draining: bool = False
    taken: int = 0
    terms: dict[str, ModelTerms] = field(default_factory=dict)

    def report(self) -> NodeReport:
        free = {device: nbytes - self.taken for device, nbytes in self.info.devices.items()}
        used: dict[str, dict[str, float]] = {}
        for session in self.sessions.values():
            free[session.device] -= session.bytes
            row = used.setdefault(session.owner, {"sessions": 0, "memory_bytes": 0})
            row["sessions"] += 1
            row["memory_bytes"] += session.bytes
        for owner, seconds in self.used_seconds.items():
            used.setdefault(owner, {})["worker_seconds"] = seconds
        models = {name: ReplicaReport(ready, self.in_flight.get(name, 0)) for name, ready in self.models.items()}
        refused, self.refused = tuple(sorted(self.refused)), set()
        sessions, terms = tuple(self.sessions.values()), dict(self.terms)
        return NodeReport(free, sessions, models, self.queue, used, refused, self.orders, terms)

    def take(self, sent: NodeOrders | PlacedSession) -> None:
        """Take shares that are newer than those that it has."""
        for owner, row in sent.shares.items():
            revision = sent.revisions[owner] if isinstance(sent, NodeOrders) else sent.revision
            if revision > self.revisions.get(owner, 0):
                self.shares[owner], self.revisions[owner] = dict(row), revision

    def obey(self, orders: NodeOrders) -> None:
        self.take(orders)
        self.orders = max(self.orders, orders.number)
        for name, version in orders.load:
            self.models[name] = (*self.models.get(name, ()), version or "1")
        for name, version in orders.unload:
            ready = tuple(old for old in self.models[name] if version and old != version)
            if ready:
                self.models[name] = ready
            else:
                del self.models[name]
        for id in orders.end:
            self.sessions.pop(id, None)
        self.draining = orders.draining


class SmallCluster:
    """A controller and its pretend nodes, with a clock that `settle` moves."""

    def __init__(self, controller: Controller | None = None) -> None:
        self.controller = controller or Controller()
        self.terms: dict[str, ModelTerms] = {}
        self.nodes: dict[str, PretendNode] = {}
        self.now = 1_000_000.0
        self._wishes = 0
        self._sessions = 0

    def join(self, name: str, **devices: int) -> PretendNode:
        """Add a node; `gpu0=GIB` is the device gpu:0."""
        named = {key.replace("gpu", "gpu:"): nbytes for key, nbytes in devices.items()}
        node = self.nodes[name] = PretendNode(NodeInfo(name, f"http://{name}:8000", named), terms=dict(self.terms))
        self.controller.join(node.info, self.now)
        return node

    def serve(self, model: str, terms: ModelTerms) -> None:
        """Have the files of all nodes say so from now on, also of those that join later."""
        self.terms[model] = terms
        for node in self.nodes.values():
            node.terms[model] = terms

    def settle(self, seconds: int = 1) -> None:
        """Let all nodes report so many times, a second apart."""
        for _ in range(seconds):
            self.settle_but("")

    def settle_but(self, silent: str) -> None:
        """Let a second pass, in which all nodes report but one."""
        self.now += 1
        for name, node in self.nodes.items():
            if name != silent:
                node.obey(self.controller.report(name, node.report(), self.now))
        self.controller.tick(self.now)

    def wish(self, owner: str = "ann", device: str = "cpu", **fields: Any) -> SessionWish:
        self._wishes += 1
        return SessionWish(f"{self._wishes:032x}", owner, device, **fields)

    def place(self, owner: str = "ann", device: str = "cpu", **fields: Any) -> Outcome:
        return self.controller.place(self.wish(owner, device, **fields), self.now)

    def open(self, owner: str = "ann", device: str = "cpu", nbytes: int = MIB, **fields: Any) -> str:
        """Place a session, open it on its node, and return its id."""
        place = self.place(owner, device, **fields)
        assert isinstance(place, PlacedSession), place
        return self.start(place, owner, nbytes)

    def start(self, place: PlacedSession, owner: str = "ann", nbytes: int = MIB) -> str:
        """Open a session where it was placed."""
        self._sessions += 1
        id = f"{place.node}-{self._sessions:032x}"
        self.nodes[place.node].sessions[id] = SessionReport(id, owner, place.device, nbytes)
        self.nodes[place.node].take(place)
        return id

    def end(self, id: str) -> None:
        """End a session on its node."""
        del self.nodes[id.partition("-")[0]].sessions[id]
