"""Whole answers: what the gateway itself asks a node, and reads in one piece."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from opbox_protocol.errors import BadRequestError

from .heads import AnswerHead, RequestHead
from .node_connections import NodeConnection, NodePool

__all__ = ["WholeAnswer", "ask"]

MAX_ANSWER = 16 << 20
"""Maximum bytes of such an answer."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer.

    Attributes:
        status: its status.
        headers: with names as they came, and Content-Length.
        body: all of it.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _AnswerCollector:
    """Takes one answer of a node."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.head: AnswerHead | None = None
        self.parts: list[bytes] = []
        self._size = 0

    def answer_began(self, head: AnswerHead) -> None:
        """See AnswerTaker."""
        if head.status >= 200:
            self.head = head

    def answer_data(self, raw: bytes, data: list[bytes] | None) -> None:
        """See AnswerTaker."""
        self.parts += [raw] if data is None else data
        self._size += len(raw)
        if self._size > MAX_ANSWER:
            raise BadRequestError("answer: expected a small one, got more")

    def answer_paused(self) -> None:
        """See AnswerTaker: nothing is kept back."""

    def answer_is_large(self, connection: NodeConnection) -> None:
        """See AnswerTaker: what is collected comes here."""

    def answer_ended(self) -> None:
        """See AnswerTaker."""
        if not self.whole.done():
            self.whole.set_result(None)

    def node_broke(self, connection: NodeConnection) -> None:
        """See AnswerTaker."""
        if not self.whole.done():
            self.whole.set_exception(ConnectionError(f"{connection.pool.url}: the connection ended before the answer"))

    def node_is_full(self, full: bool) -> None:
        """See AnswerTaker: a small request does not wait."""


async def ask(pool: NodePool, head: RequestHead, body: bytes, client: bytes) -> WholeAnswer:
    """Send a request to a node and return its answer.

    Args:
        pool: of the node.
        head, body: the request.
        client: address of whom it is for.

    Raises:
        OSError: the node is not reached, or the connection ended before the answer.
    """
    connection = pool.take() or await pool.connect()
    collector = _AnswerCollector()
    connection.begin(collector, head.method, head.for_node(client) + body)
    connection.sent = True
    try:
        await collector.whole
    except asyncio.CancelledError:
        connection.drop()
        raise
    assert collector.head is not None
    lines = collector.head.text.split(b"\r\n")[1:-1]
    pairs = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    framing = (b"transfer-encoding", b"content-length")
    body = b"".join(collector.parts)
    headers = [pair for pair in pairs if pair[0].lower() not in framing]
    return WholeAnswer(collector.head.status, [*headers, (b"content-length", b"%d" % len(body))], body)
