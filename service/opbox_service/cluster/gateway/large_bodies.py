"""Large bodies of a request and of its answer: they go by relays, once what came before has been written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .pipes import BodyCopy
from .relay import Relay

if TYPE_CHECKING:
    from .exchange import GatewayExchange
    from .node_connections import NodeConnection

__all__ = ["LargeAnswer", "LargeBody"]

HOLD = "relay"
"""Why a connection is not read from while a relay reads."""


class LargeBody:
    """The body of a request, on its way to the node.

    Args:
        exchange: the request.
        node: which it goes to.
    """

    def __init__(self, exchange: GatewayExchange, node: NodeConnection) -> None:
        self._exchange, self._node = exchange, node
        self._copy: BodyCopy | None = None
        self._relay: Relay | None = None
        self._is_over = False
        exchange.client.hold(HOLD)
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._is_over:
            return
        exchange, node = self._exchange, self._node
        client = exchange.client
        relays = exchange.gateway.relays
        if exchange.keeps:
            self._copy = relays.body_copy()
        if not node.transport.get_write_buffer_size() and exchange.keeps == (self._copy is not None):
            self._relay = relays.open(client.transport, node.transport, client.left, self, self._copy)
        if self._relay is None:  # read on, and try again with the next piece
            self.drop_kept()
            exchange.large_body_ended()
            client.release(HOLD)
        else:
            self._relay.start()

    def drop_kept(self) -> None:
        """Keep no more of it."""
        if self._relay is not None:
            self._relay.drop_kept()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def stop(self, *, keep: bool = False) -> list[bytes]:
        """End it, and read on; with `keep`, return what was passed on."""
        self._is_over = True
        if self._relay is not None:
            self._relay.stop(keep=keep)
        parts = self._copy.parts() if keep and self._copy is not None else []
        self.drop_kept()
        self._exchange.client.release(HOLD)
        return parts

    def relay_read(self, nbytes: int) -> None:
        """See RelayOwner."""
        self._exchange.client.left -= nbytes
        self._exchange.keep_more(nbytes)

    def relay_ended(self) -> None:
        """See RelayOwner."""
        self._exchange.client.body_is_whole()
        self._exchange.client.release(HOLD)

    def relay_waits(self) -> None:
        """See RelayOwner: the client waits too, as nothing is read."""

    def relay_broke(self, *, source: bool) -> None:
        """See RelayOwner. A node's connection says by itself that it has ended, behind an answer that came early."""
        if source:
            self._exchange.client.abort()


class LargeAnswer:
    """The body of an answer, on its way to the client.

    Args:
        exchange: the request.
        node: which it comes from.
    """

    def __init__(self, exchange: GatewayExchange, node: NodeConnection) -> None:
        self._exchange, self._node = exchange, node
        self._relay: Relay | None = None
        self._is_over = False
        node.hold(HOLD)
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._is_over:
            return
        exchange, node = self._exchange, self._node
        if not exchange.client.transport.get_write_buffer_size():
            self._relay = exchange.gateway.relays.open(node.transport, exchange.client.transport, node.left, self)
        if self._relay is None:
            exchange.large_answer_ended()
            node.release(HOLD)
        else:
            self._relay.start()

    def stop(self) -> None:
        """End it."""
        self._is_over = True
        if self._relay is not None:
            self._relay.stop()

    def relay_read(self, nbytes: int) -> None:
        """See RelayOwner."""
        self._node.left -= nbytes
        self._exchange.client.stalls(False)

    def relay_ended(self) -> None:
        """See RelayOwner."""
        self._exchange.client.stalls(False)
        self._exchange.large_answer_ended()
        self._node.answer_is_whole()

    def relay_waits(self) -> None:
        """See RelayOwner."""
        self._exchange.client.stalls(True)

    def relay_broke(self, *, source: bool) -> None:
        """See RelayOwner."""
        if source:
            self._node.transport.abort()
        else:
            self._exchange.client.abort()
