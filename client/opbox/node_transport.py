"""NodeTransport: calls straight to the node of a cluster that has a session, with its gateway as the way behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError, TransportError
from opbox_protocol.transport import Reply

from . import address
from .http import HttpTransport
from .http_messages import ReadReply
from .repeated_calls import Attempts

__all__ = ["NodeTransport", "node_transport"]

PROBE_S = 2.0
"""Seconds that each request of a probe may take."""


class NodeTransport(HttpTransport):
    """A node of a cluster. When the connection breaks, this call and all later ones go by the gateway.

    A call has one number on both ways, so the node, which the gateway passes it on to, runs it once.

    Args:
        url: of the node.
        through: the transport to the gateway; it stays open when this is closed.

    Attributes:
        broken: whether calls go by the gateway.
    """

    def __init__(self, url: str, through: HttpTransport) -> None:
        server = through._server
        super().__init__(url, server.token, server.timeout, patience=server.patience)
        self._through = through
        self._numbers = through._numbers
        self._answered = time.monotonic()
        self.broken = False

    def _has_another_token(self, refused: str | None) -> bool:
        """Return whether there is a token other than the one that was refused, by now."""
        self._through._has_another_token(refused)
        self._server.use_token(self._through._server.token)
        return self._server.token != refused

    def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        chunks: Sequence[Any],
        read: ReadReply,
        attempts: Attempts,
    ) -> Reply:
        if not self.broken:
            try:
                return super()._call(method, path, headers, chunks, read, attempts)
            except TransportError as error:
                if self._closed or error.retry_after is None:
                    raise
                self.broken = True
                if attempts.number is None:  # it may have run: `attempts` decides
                    raise
        return self._through._call(method, path, headers, chunks, read, attempts)


def node_transport(url: str, session: str, through: HttpTransport) -> NodeTransport | None:
    """Return a transport straight to a session's node; None where the gateway remains the way.

    A probe says whether the node is reached. The token is sent once what listens there has said that it is live, and
    never without TLS where the gateway has TLS. A machine's own loopback address means another machine elsewhere, so
    it counts only where the gateway is on loopback too. A program's own httpx client, and proxies, are not gone around.

    Args:
        url: of the node, as the gateway has said it.
        session: the id.
        through: the transport to the gateway.
    """
    gateway = through._server
    try:
        parts = address.split(url)
        if through._client is not None or (gateway.tls and parts.scheme != "https"):
            return None
        if _is_loopback(parts.hostname) and not _is_loopback(gateway.host):
            return None
        node = NodeTransport(url, through)
        if node._proxy or (node._server.host, node._server.port) == (gateway.host, gateway.port):
            return None
        if _ask(url, None, routes.LIVE).get("live") is not True:
            return None
        is_there = _ask(url, gateway.token, routes.SESSION.format(id=session)).get("id") == session
    except (MXNetError, OSError, ValueError):
        return None
    return node if is_there else None


def _ask(url: str, token: str | None, path: str) -> dict[str, Any]:
    """Return the node's answer to a request.

    Raises:
        MXNetError: it refuses, or is not reached.
    """
    probe = HttpTransport(url, token, PROBE_S, patience=0)
    try:
        return probe.call("GET", path).header
    finally:
        probe.close()


def _is_loopback(host: str | None) -> bool:
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"
