"""LoadedModels: on which nodes each model is ready, also those that have no `replicas` or that an owner published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .documents import NodeReport

__all__ = ["LoadedModels"]


class LoadedModels:
    """Enters what nodes report, at a cost that goes by what has changed.

    Attributes:
        nodes: by model, those where a version is ready, in order.

    Example:
        >>> loaded = LoadedModels()
        >>> loaded.report("a", NodeReport({}, models={"net": ReplicaReport(("1",))})), loaded.nodes
        (True, {'net': ('a',)})
    """

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, ...]] = {}
        self._on_node: dict[str, set[str]] = {}

    def report(self, node: str, report: NodeReport) -> bool:
        """Take a node's report, as it came; return whether something has changed."""
        here = self._on_node.setdefault(node, set())
        ready = {name for name, row in report.models.items() if row.versions}
        if report.since:
            ended = here.intersection((*report.models, *report.unloaded)) - ready
        else:
            ended = here - ready
        began = ready - here
        for name in ended:
            self._remove(node, name)
        for name in began:
            self.nodes[name] = tuple(sorted((*self.nodes.get(name, ()), node)))
        here |= began
        here -= ended
        return bool(began or ended)

    def lost(self, node: str) -> None:
        """Forget what is on a node."""
        for name in self._on_node.pop(node, ()):
            self._remove(node, name)

    def _remove(self, node: str, name: str) -> None:
        nodes = tuple(other for other in self.nodes[name] if other != node)
        if nodes:
            self.nodes[name] = nodes
        else:
            del self.nodes[name]

    def state(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {name: list(nodes) for name, nodes in sorted(self.nodes.items())}

    def restore(self, state: Mapping[str, Iterable[str]]) -> None:
        """Take a state."""
        for name, nodes in state.items():
            self.nodes[name] = tuple(nodes)
            for node in self.nodes[name]:
                self._on_node.setdefault(node, set()).add(name)
