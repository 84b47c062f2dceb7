"""SessionWay: how a session's batches get to the engine: straight to its node in a cluster, or as all other calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opbox_protocol.transport import Transport

if TYPE_CHECKING:
    from .node_transport import NodeTransport

__all__ = ["SessionWay", "direct_wanted"]


def direct_wanted() -> bool:
    """Return whether batches may go straight to a cluster's node; ValueError unless OPBOX_DIRECT is 0 or 1."""
    setting = os.environ.get("OPBOX_DIRECT", "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"OPBOX_DIRECT: expected 0 or 1, got {setting!r}")
    return setting != "0"


class SessionWay:
    """The way of a session's batches.

    The gateway of a cluster says the URL of a session's node. Batches go by the gateway until a probe, in a thread, has
    shown that the node is reached from here.

    Args:
        transport: by which the session was opened.
        answer: to the request that opened it.

    Attributes:
        settled: set once the probe is over; no batch takes another way after that, unless a connection breaks.
    """

    def __init__(self, transport: Transport, answer: Mapping[str, Any]) -> None:
        self._by = transport
        self._node: NodeTransport | None = None
        self.settled = threading.Event()
        url = answer.get("url")
        if transport.in_process or not isinstance(url, str) or not direct_wanted():
            self.settled.set()
            return
        probe = threading.Thread(target=self._probe, args=(url, answer["id"]), name="opbox-probe", daemon=True)
        probe.start()

    def _probe(self, url: str, session: str) -> None:
        from .http import HttpTransport  # what an embedded engine needs none of
        from .node_transport import node_transport

        try:
            if isinstance(self._by, HttpTransport):
                self._node = node_transport(url, session, self._by)
        finally:
            self.settled.set()

    @property
    def transport(self) -> Transport:
        """By which the next batch goes."""
        return self._node or self._by

    @property
    def address(self) -> str:
        """Where the next batch goes: the URL of the node, or that of the server or gateway which the user named."""
        return self._by.address if self._node is None or self._node.broken else self._node.address

    def close(self) -> None:
        """Close the connections to the node."""
        if self._node is not None:
            self._node.close()
