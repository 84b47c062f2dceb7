"""AnswerBundle: the answers of one run of several requests, which leave a worker in one message."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["AnswerBundle"]

MAX_BYTES = 1 << 15
"""Bytes of answers after which they are sent: with the last one's, and their JSON, far below a message's limit."""
MAX_ANSWERS = 64
"""Number of answers after which they are sent, as each has some hundred bytes of JSON."""


class AnswerBundle:
    """Gathers the answers of the thread that has made it.

    Args:
        send: sends a message, and what follows its object.

    Example:
        >>> sent = []
        >>> bundle = AnswerBundle(lambda message, body: sent.append((message, body)))
        >>> bundle.take({"kind": "answer", "id": 1, "size": 3}, b"one")
        True
        >>> bundle.take({"kind": "answer", "id": 2, "size": 3}, b"two")
        True
        >>> bundle.send()
        >>> sent[0][0]["kind"], sent[0][1]
        ('answers', b'onetwo')
    """

    def __init__(self, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._send = send
        self._thread = threading.get_ident()
        self._answers: list[dict[str, Any]] = []
        self._bodies: list[bytes] = []
        self._size = 0

    def take(self, message: dict[str, Any], body: bytes) -> bool:
        """Take an answer; return False for one of another thread, or one that reports a problem."""
        if threading.get_ident() != self._thread or "problem" in message:
            return False
        self._answers.append(message)
        self._bodies.append(body)
        self._size += len(body)
        if self._size >= MAX_BYTES or len(self._answers) >= MAX_ANSWERS:
            self.send()
        return True

    def send(self) -> None:
        """Send what has been taken."""
        answers, bodies = self._answers, self._bodies
        self._answers, self._bodies, self._size = [], [], 0
        if len(answers) == 1:
            self._send(answers[0], bodies[0])
        elif answers:
            self._send({"kind": "answers", "answers": answers}, b"".join(bodies))
