"""Ray's nodes as the controller sees them, and the actors on them: the only calls of Ray that it makes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .documents import OwnerQuotas
from .node_actor import NodeActor
from .ray_start import MARK, NAMESPACE

__all__ = ["RayNode", "end_actor", "find_actor", "name_for", "ray_nodes", "request_nodes", "start_actor"]

MAX_NAME = 16


@dataclass(frozen=True, slots=True)
class RayNode:
    """A machine of Ray's cluster.

    Attributes:
        id: Ray's.
        host: its name, or the one that `opbox cluster` was called with.
        address: of the machine.
        marked: whether `opbox cluster` started it.
        gpus: number of its GPUs that no job has.
    """

    id: str
    host: str
    address: str
    marked: bool
    gpus: int


def ray_nodes() -> list[RayNode]:
    """Return the machines that are alive; takes some milliseconds."""
    free = ray._private.state.available_resources_per_node()
    return [
        RayNode(
            id=row["NodeID"],
            host=row["NodeName"].partition("/")[0] if MARK in row["Resources"] else row["NodeManagerHostname"],
            address=row["NodeManagerAddress"],
            marked=MARK in row["Resources"],
            gpus=int(free.get(row["NodeID"], {}).get("GPU", 0)),
        )
        for row in ray.nodes()
        if row["Alive"]
    ]


def name_for(host: str, taken: Iterable[str]) -> str:
    """Return a node's name: the host's letters and digits, with a number if another node has it.

    Example:
        >>> name_for("GPU-box.lab", {"gpuboxlab"})
        'gpuboxlab2'
    """
    names = set(taken)
    base = re.sub(r"[^a-z0-9]", "", host.lower())[:MAX_NAME] or "node"
    number, name = 1, base
    while name in names:
        number += 1
        name = base[: MAX_NAME - len(str(number))] + str(number)
    return name


def _actor_name(node: str) -> str:
    return f"opbox-node-{node}"


def start_actor(node: RayNode, name: str, settings: Mapping[str, str], tokens: str, usual: OwnerQuotas) -> Any:
    """Start the actor of a node on its machine; it has all GPUs there that no other job has."""
    options: dict[str, Any] = {
        "name": _actor_name(name),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "num_gpus": node.gpus,
        "max_restarts": 0,
        "max_concurrency": 100,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
    }
    return ray.remote(NodeActor).options(**options).remote(name, dict(settings), tokens, node.address, usual)


def find_actor(name: str) -> Any:
    """Return the actor of a node that runs; None if there is none."""
    try:
        return ray.get_actor(_actor_name(name), namespace=NAMESPACE)
    except ValueError:
        return None


def end_actor(actor: Any) -> None:
    """End a node's actor at once, and with it its server."""
    with contextlib.suppress(Exception):  # it has ended
        ray.kill(actor)


def request_nodes(bundles: list[dict[str, float]]) -> None:
    """Ask Ray's autoscaler to have room for these bundles of resources beside what there is; none: nothing is needed.

    A cluster without an autoscaler takes no notice.
    """
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)
