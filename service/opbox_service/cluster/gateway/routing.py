"""Routing: which of the cluster's nodes a request is for, by its method and path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opbox_protocol import routes

from .merging import LISTS

__all__ = ["CLUSTER", "GatewayRoute", "route_of"]

CLUSTER = "/v1/cluster"
"""The gateway's own route: nodes, models and what is in flight."""


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """Whom a request is for.

    Attributes:
        kind: "place": a new session, for which the controller chooses; "session": the node of `name`, an id; "model":
            a replica of the model `name`; "list": all nodes; "own": the gateway; "any": any node.
        name: see kind.
        again: whether a request may be made again on another node that may have run it: infer may.
    """

    kind: Literal["place", "session", "model", "list", "own", "any"]
    name: str = ""
    again: bool = False


ANY = GatewayRoute("any")
PLACE = GatewayRoute("place")
OWN = GatewayRoute("own")


def route_of(method: str, path: str) -> GatewayRoute:
    """Return whom a request is for.

    Args:
        method, path: of the request; the path without its query, decoded.

    Example:
        >>> route_of("POST", "/v2/models/digits/infer")
        GatewayRoute(kind='model', name='digits', again=True)
    """
    parts = path.split("/", 5)
    if len(parts) < 3:
        return ANY
    first, second = parts[1], parts[2]
    third = parts[3] if len(parts) > 3 else ""
    if first == "v1":
        if second == "sessions":
            if third:
                return GatewayRoute("session", third)
            if method == "POST" and path == routes.SESSIONS:
                return PLACE
            return GatewayRoute("list", path) if method == "GET" and path in LISTS else ANY
        if second == "history" and third:
            return GatewayRoute("session", third)
        if second == "admin" and third == "sessions" and len(parts) == 5 and parts[4]:
            return GatewayRoute("session", parts[4])
        if method == "GET" and path in LISTS:
            return GatewayRoute("list", path)
        return OWN if path == CLUSTER else ANY
    if first == "v2":
        if second == "models" and third and len(parts) > 4:
            return GatewayRoute("model", third, method == "POST" and path.endswith("/infer"))
        if second == "models" and third and third != "stats":
            return GatewayRoute("model", third)
        if path == routes.LIVE and method in ("GET", "HEAD"):
            return OWN
    return ANY
