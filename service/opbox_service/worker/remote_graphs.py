"""A worker's way to graphs that other servers have: by the API process, as to checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from opbox_protocol.errors import MXNetError

from ..graph_store import AWAY_S
from ..sealed_files import write_sealed
from .remote_checkpoints import RemoteCheckpoints, mapped

__all__ = ["RemoteGraphs"]

LOOK_S = 5.0
"""Seconds that a call waits for the store at most; then its client sends the graph."""


class RemoteGraphs:
    """See GraphStore.

    Args:
        requests: asks the API process, and waits for its answers.
        send: sends a message to it, with descriptors.
    """

    def __init__(self, requests: RemoteCheckpoints, send: Callable[[dict[str, Any], tuple[int, ...]], None]) -> None:
        self._requests = requests
        self._send = send
        self._away_until = 0.0

    def save(self, owner: str, key: str, text: bytes) -> None:
        """See GraphStore."""
        if self._requests.closing:
            return
        try:
            fd = write_sealed("opbox-graph", [text])
        except OSError:
            return
        try:
            self._send({"kind": "graph", "do": "keep", "id": 0, "owner": owner, "name": key}, (fd,))
        finally:
            os.close(fd)

    def load(self, owner: str, key: str) -> bytes | None:
        """See GraphStore."""
        if self._requests.closing or time.monotonic() < self._away_until:
            return None
        message = {"kind": "graph", "do": "load", "owner": owner, "name": key}
        try:
            answer, fd = self._requests.ask(message, (), LOOK_S)
            if not answer.get("value"):
                return None
            return bytes(mapped(fd, f"graph {key[:12]}…"))
        except (MXNetError, OSError):
            self._away_until = time.monotonic() + AWAY_S
            return None
