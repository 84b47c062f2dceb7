"""ControllerOptions: what a cluster is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ControllerOptions"]


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What a cluster is started with.

    Attributes:
        folder: for the controller's state.
        tokens_file: on the head's machine; all nodes get its text, again when it changes. "": none.
        usual: by quota, what owners have over all nodes who have no terms of their own.
        every_node: whether opbox serves on each of Ray's nodes, or on those alone that `opbox cluster` started.
        settings: variables of the nodes' servers, where a node's own environment has none.
        idle_s: with `every_node`, seconds after which a node without sessions is given back to the autoscaler.
    """

    folder: str
    tokens_file: str = ""
    usual: Mapping[str, float] = field(default_factory=dict)
    every_node: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    idle_s: float = 600.0
