"""Directories: where sessions and models are, in versions that gateways ask for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ..session_ids import node_of
from .documents import Directory, DirectoryNode, GoneSession, NodeState

__all__ = ["Directories"]

REMEMBERED_S = 86400.0
"""Seconds for which the reason of a lost session is remembered."""
MAX_REMEMBERED = 1 << 18
"""Maximum number of lost sessions that are remembered."""


class Directories:
    """Sessions' nodes, reasons of lost sessions, and the directory of now.

    Example:
        >>> directories = Directories()
        >>> directories.node("a", "http://a:8000", "ready")
        >>> directories.now().nodes["a"].url
        'http://a:8000'
    """

    def __init__(self) -> None:
        self._version = 0
        self._nodes: dict[str, DirectoryNode] = {}
        self._models: dict[str, tuple[str, ...]] = {}
        self._sessions: dict[str, str] = {}
        self._lost: OrderedDict[str, tuple[str, str, float]] = OrderedDict()
        self._moved: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._now: Directory | None = None

    def now(self) -> Directory:
        """The directory; the same object until something changes."""
        if self._now is None:
            moved = {id: new for id, (new, _) in self._moved.items()}
            self._now = Directory(self._version, dict(sorted(self._nodes.items())), dict(self._models), moved)
        return self._now

    def node(self, name: str, url: str, state: NodeState) -> None:
        """Enter a node."""
        node = DirectoryNode(url, state)
        if self._nodes.get(name) != node:
            self._nodes[name] = node
            self._change()

    def forget_node(self, name: str) -> None:
        """Remove a node that is lost for long."""
        if self._nodes.pop(name, None) is not None:
            self._change()

    def models(self, serving: Mapping[str, tuple[str, ...]]) -> None:
        """Enter where models are ready."""
        if self._models != serving:
            self._models = dict(serving)
            self._change()

    def opened(self, session_id: str, node: str) -> None:
        """Enter a session that a node reports."""
        self._sessions[session_id] = node
        self._lost.pop(session_id, None)

    def ended(self, session_id: str) -> None:
        """Remove a session that its node reports no longer."""
        self._sessions.pop(session_id, None)

    def lost(self, session_id: str, owner: str, reason: str, now: float) -> None:
        """Record why a session is gone, and whose it was."""
        self._sessions.pop(session_id, None)
        self._lost[session_id] = owner, reason, now
        while len(self._lost) > MAX_REMEMBERED:
            self._lost.popitem(last=False)

    def move(self, session_id: str, new_id: str, now: float) -> None:
        """Record that a lost session goes on as another."""
        self._moved[session_id] = new_id, now
        while len(self._moved) > MAX_REMEMBERED:
            self._moved.popitem(last=False)
        self._change()

    def owner_of(self, session_id: str) -> str:
        """Whose a lost session was; "" if it is not known to be lost."""
        return self._lost.get(session_id, ("", "", 0.0))[0]

    def is_moved(self, session_id: str) -> bool:
        """Whether it goes on as another."""
        return session_id in self._moved

    def node_of(self, session_id: str) -> str | None:
        """The node that has a session: as reported, or as its id says, before the node has reported it."""
        if session_id in self._lost or session_id in self._moved:
            return None
        return self._sessions.get(session_id) or node_of(session_id)

    def gone(self, session_id: str) -> GoneSession:
        """Why a session is on no node."""
        moved = self._moved.get(session_id, ("", 0.0))[0]
        reason = self._lost.get(session_id, ("", "", 0.0))[1]
        name = node_of(session_id) or ""
        node = self._nodes.get(name)
        if not reason and node is not None and node.state == "lost":
            reason = f"node {name} was lost"
        if moved:
            return GoneSession(410, f"session {session_id}: {reason or 'it was moved'}: it goes on as {moved}", moved)
        if reason:
            return GoneSession(410, f"session {session_id}: {reason}: open another, and restore a checkpoint in it")
        return GoneSession(404, f"session: expected one that a node of the cluster has, got {session_id!r}")

    def expire(self, now: float) -> None:
        """Forget what was lost long ago."""
        while self._lost and now - next(iter(self._lost.values()))[2] > REMEMBERED_S:
            self._lost.popitem(last=False)
        while self._moved and now - next(iter(self._moved.values()))[1] > REMEMBERED_S:
            self._moved.popitem(last=False)
            self._change()

    def _change(self) -> None:
        self._version += 1
        self._now = None

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All but the sessions that nodes report, as JSON."""
        return {
            "version": self._version,
            "models": {name: list(nodes) for name, nodes in sorted(self._models.items())},
            "lost": [[id, *row] for id, row in self._lost.items()],
            "moved": [[id, new, when] for id, (new, when) in self._moved.items()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Directories:
        """The directories that had this state, without nodes and sessions."""
        directories = cls()
        directories._models = {name: tuple(nodes) for name, nodes in state["models"].items()}
        directories._lost.update((id, (owner, reason, when)) for id, owner, reason, when in state["lost"])
        directories._moved.update((id, (new, when)) for id, new, when in state["moved"])
        return directories

    def set_version(self, version: int) -> None:
        """Set the version, after nodes and sessions have been entered."""
        self._version, self._now = version, None
