"""This process as a worker of a training: its rank, and the groups that its sessions are in."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

from opbox_protocol.errors import MXNetError

from .. import connection
from ..session import Session
from .rendezvous import VARIABLE, Meeting, WorkerPlace

__all__ = ["WorkerGroup", "group"]

_groups: dict[tuple[int, str], WorkerGroup] = {}


def group() -> WorkerGroup:
    """This process's group of workers; the first call connects with the program that has started it.

    Raises:
        MXNetError: this process is no worker.

    Example:
        >>> mx.dist.group().rank
        0
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        raise MXNetError(
            "dist_sync: expected a worker of several, got a program started by itself: start it with "
            "`opbox dist run --workers N PROGRAM` or mx.dist.launch"
        )
    key = os.getpid(), text
    if key not in _groups:
        _groups[key] = WorkerGroup(WorkerPlace.load(text))
    return _groups[key]


class WorkerGroup:
    """All workers of a training, as one of them has them.

    Attributes:
        rank, size: this worker's number, and that of all.
        restart: how often the training has been started again.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self.rank, self.size, self.restart = place.rank, place.size, place.restart
        self._secret = bytes.fromhex(place.secret)
        self._meeting = Meeting(place)
        self._barriers = 0
        self._joined: dict[str, int] = {}

    def barrier(self) -> None:
        """Wait until all workers have come here.

        Raises:
            PeerLostError: one has ended.
        """
        self._barriers += 1
        self._meeting.gather(f"barrier {self._barriers}", None)

    def in_session(self, session: Session) -> int:
        """The number of the group in a session of this worker, which joins it at first; waits for all workers.

        All workers must join with their sessions in the same order.

        Raises:
            PeerLostError: a worker has ended.
            MXNetError: a server does not let its sessions exchange arrays, or a worker did not come.
        """
        number = self._joined.get(session.id)
        if number is not None:
            return number
        count, number = len(self._joined), session.new_id()
        secret = hmac.digest(self._secret, f"group {count}".encode(), hashlib.sha256).hex()
        at = {"url": connection.transport().address, "id": session.id}
        try:
            joined = session.ask(
                {"do": "join_group", "id": number, "rank": self.rank, "size": self.size, "secret": secret}
            )
            address: Any = joined["address"]
        except MXNetError as error:
            # The others must not wait for this one.
            self._meeting.gather(f"group {count}", {"error": str(error)}, at)
            raise
        values = self._meeting.gather(f"group {count}", {"address": address}, at)
        for rank, value in enumerate(values):
            if "error" in value:
                raise MXNetError(f"dist_sync: rank {rank} of {self.size} could not join: {value['error']}")
        session.ask({"do": "connect_group", "id": number, "addresses": [value["address"] for value in values]})
        self._joined[session.id] = number
        return number
