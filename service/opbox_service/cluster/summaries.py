"""Summaries: what the gateway and the page show of nodes, from the controller's last reports."""

from __future__ import annotations

from typing import Any

from .controller import Controller
from .nodes import ClusterNode

__all__ = ["cluster_summary"]


def cluster_summary(controller: Controller) -> dict[str, Any]:
    """Return the nodes' figures and how many sessions wait for each kind of device, in JSON's types.

    Example:
        >>> cluster_summary(Controller())
        {'nodes': {}, 'waiting': {}}
    """
    return {
        "nodes": {name: _node_summary(node) for name, node in controller.nodes.items()},
        "waiting": {kind: demand.sessions for kind, demand in controller.demand().items()},
    }


def _node_summary(node: ClusterNode) -> dict[str, Any]:
    """A node's figures; a lost one has none of now."""
    if node.state == "lost":
        return {"version": node.info.version, "devices": {}, "sessions": 0, "queue": 0}
    free = node.report.free if node.report is not None else node.info.devices
    devices = {name: {"bytes": nbytes, "free": free.get(name, 0)} for name, nbytes in node.info.devices.items()}
    return {
        "version": node.info.version,
        "devices": devices,
        "sessions": len(node.sessions),
        "queue": node.queue,
    }
