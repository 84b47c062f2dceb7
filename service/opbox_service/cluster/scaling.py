"""What the cluster asks of Ray's autoscaler: nodes while sessions wait, and none for nodes that nobody uses."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Scaling"]

RESOURCES = {"gpu": "GPU", "cpu": "CPU"}
"""Ray's resource for each kind of device."""


class Scaling:
    """Decides which nodes are asked for, taken and given back; has no clock and makes no calls.

    Args:
        idle_s: seconds without a session after which a node is given back; infinite: never.

    Example:
        >>> scaling = Scaling(600)
        >>> scaling.bundles({"gpu": 2})
        [{'GPU': 1.0}, {'GPU': 1.0}]
        >>> scaling.gives_back("a", 601, {}), scaling.takes("a", {}), scaling.takes("a", {"gpu": 1})
        (True, False, True)
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._asked: list[dict[str, float]] = []
        self._released: set[str] = set()

    def bundles(self, demand: Mapping[str, int]) -> list[dict[str, float]] | None:
        """Return what to ask for now; None if that is what has been asked for already.

        Args:
            demand: sessions that wait, by kind of device.
        """
        wanted = [{RESOURCES[kind]: 1.0} for kind in sorted(demand) if kind in RESOURCES for _ in range(demand[kind])]
        if wanted == self._asked:
            return None
        self._asked = wanted
        return wanted

    def takes(self, node: str, demand: Mapping[str, int]) -> bool:
        """Return whether to serve on one of Ray's nodes: on one that was given back, only while sessions wait."""
        if node not in self._released:
            return True
        if not any(demand.values()):
            return False
        self._released.discard(node)
        return True

    def gives_back(self, node: str, idle_s: float, demand: Mapping[str, int]) -> bool:
        """Return whether to give a node back that has been without a session for so long."""
        if idle_s <= self._idle_s or any(demand.values()) or node in self._released:
            return False
        self._released.add(node)
        return True
