"""A worker's way to checkpoints: it has no files, so the API process, which knows whose they are, keeps them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

from opbox_protocol.errors import DeadlineError, NotReadyError, error_from_json

from ..checkpoint_store import Buffer
from ..sealed_files import map_sealed, write_sealed
from ..store_threads import STORE_S

__all__ = ["RemoteCheckpoints", "mapped"]

ANSWER_S = STORE_S + 10
"""Seconds to wait for an answer: a little more than the API process gives the disk."""
_SUBJECTS = {"rows": "dataset", "graph": "graph"}


class RemoteCheckpoints:
    """See CheckpointStore.

    Args:
        send: sends a message to the API process, with descriptors.

    Attributes:
        closing: whether the API process answers no more, though it still takes what is saved.
    """

    def __init__(self, send: Callable[[dict[str, Any], tuple[int, ...]], None]) -> None:
        self._send = send
        self._new_id = itertools.count(1).__next__
        self._waiting: dict[int, tuple[Event, list[tuple[dict[str, Any], int | None]]]] = {}
        self.closing = False

    def save(self, owner: str, name: str, parts: Sequence[Buffer], generation: int | None = None) -> int:
        """See CheckpointStore."""
        message = {"kind": "save", "owner": owner, "name": name, "generation": generation}
        fd = write_sealed("opbox-checkpoint", parts)
        try:
            if not self.closing:
                answer, _ = self.ask(message, (fd,))
                return int(answer.get("value", generation or 0))
            self._send({**message, "id": 0}, (fd,))
            return generation or 0
        finally:
            os.close(fd)

    def load(self, owner: str, name: str) -> Buffer:
        """See CheckpointStore."""
        return mapped(self.ask({"kind": "load", "owner": owner, "name": name}, ())[1], f"checkpoint {name!r}")

    def take(self, owner: str, name: str) -> tuple[Buffer, int]:
        """See CheckpointStore."""
        answer, fd = self.ask({"kind": "load", "owner": owner, "name": name, "takes": True}, ())
        return mapped(fd, f"checkpoint {name!r}"), int(answer["value"])

    def close(self) -> None:
        """The API process answers no more: what it has been sent, it saves all the same."""
        self.closing = True
        for event, answers in list(self._waiting.values()):
            answers.append(({"status": 200}, None))
            event.set()

    def answered(self, header: dict[str, Any], fd: int | None) -> None:
        """Take the API process's answer."""
        waiting = self._waiting.pop(header["id"], None)
        if waiting is None:
            if fd is not None:
                os.close(fd)
            return
        waiting[1].append((header, fd))
        waiting[0].set()

    def ask(
        self, message: dict[str, Any], fds: tuple[int, ...], seconds: float = ANSWER_S
    ) -> tuple[dict[str, Any], int | None]:
        """The API process's answer to a message, with its descriptor.

        Args:
            message: without an id.
            fds: that go with it.
            seconds: to wait.

        Raises:
            DeadlineError: no answer in so many seconds.
            MXNetError: what the request came to.
        """
        id, event = self._new_id(), Event()
        answers: list[tuple[dict[str, Any], int | None]] = []
        self._waiting[id] = (event, answers)
        self._send({**message, "id": id}, fds)
        if not event.wait(seconds):
            self._waiting.pop(id, None)
            raise DeadlineError(
                f"{_SUBJECTS.get(message['kind'], 'checkpoint')} {message['name'][:64]!r}: expected the disk within "
                f"{seconds:g} s, got no answer"
            )
        header, fd = answers[0]
        if header["status"] != 200:
            if fd is not None:
                os.close(fd)
            raise error_from_json(header["status"], header["error"])
        return header, fd


def mapped(fd: int | None, subject: str) -> memoryview:
    """The bytes of a file by its descriptor, which is closed; NotReadyError for a descriptor that could not come."""
    if fd is None:
        raise NotReadyError(f"{subject}: no more files can be opened in this process: close some")
    try:
        empty = not os.fstat(fd).st_size  # which cannot be mapped
        return memoryview(b"") if empty else map_sealed(fd)
    finally:
        os.close(fd)
