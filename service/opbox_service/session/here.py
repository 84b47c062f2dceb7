"""SessionHere: a session of an engine in the caller's own process, whose batches the caller runs without a request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from opbox_protocol.errors import InternalError, error_from_json, error_to_json
from opbox_protocol.transport import Reply

from ..carriers import Answer, Tensors
from .session import ServerSession

__all__ = ["SessionHere", "raise_as_answered"]


class SessionHere:
    """See opbox_protocol.transport.NearSession. The caller is shielded from signals.

    Args:
        session: of the engine.
    """

    __slots__ = ("_run_at_once", "is_next")

    def __init__(self, session: ServerSession) -> None:
        self._run_at_once = session.run_at_once
        self.is_next = session.is_next

    def run(self, seq: int, commands: Sequence[Mapping[str, Any]], tensors: Tensors) -> Reply | None:
        """See opbox_protocol.transport.NearSession.run."""
        answers: list[Reply | BaseException] = []

        def done(answer: Answer | BaseException) -> None:
            if isinstance(answer, BaseException):
                answers.append(answer)
            else:
                answers.append(Reply(answer.header, {name: np.array(array) for name, array in answer.tensors.items()}))

        if not self._run_at_once(seq, commands, tensors, done):
            return None
        answer = answers[0]
        if isinstance(answer, Reply):
            return answer
        if isinstance(answer, Exception):
            raise_as_answered(answer)
        raise answer


def raise_as_answered(error: Exception) -> NoReturn:
    """Raise an engine's error as a server would answer it.

    Raises:
        MXNetError: the error without what it came from, which OPBOX_DEBUG=1 shows; a fault of the engine's as it is.
    """
    answer = error_from_json(*error_to_json(error))
    if isinstance(answer, InternalError):
        raise error  # there is no log to point to
    raise answer from (error if os.environ.get("OPBOX_DEBUG") else None)
