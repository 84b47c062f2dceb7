"""The rendezvous: where the workers of a training meet, in the process that has started them.

Workers exchange small values there: addresses of their engines' ports, and that they have come to a barrier. Arrays do
not come this way. It listens on this machine alone, and both sides prove to have the training's secret.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from opbox_protocol.errors import MXNetError, PeerLostError

__all__ = ["VARIABLE", "Meeting", "Rendezvous", "WorkerPlace"]

VARIABLE = "OPBOX_DIST"
"""The variable by which a worker knows its place."""
MAX_MESSAGE_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerPlace:
    """A worker's place in a training.

    Attributes:
        rank, size: its number, and that of all workers.
        host, port: of the rendezvous.
        secret: of the training, in hexadecimal.
        restart: how often the training has been started again.
    """

    rank: int
    size: int
    host: str
    port: int
    secret: str
    restart: int = 0

    def dump(self) -> str:
        """The place as the variable has it."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> WorkerPlace:
        """The place that `dump` wrote.

        Raises:
            MXNetError: it is something else.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise MXNetError(
                f"{VARIABLE}: expected what mx.dist.launch or `opbox dist run` sets, got {text[:40]!r}: unset it"
            ) from None


class Rendezvous:
    """Answers workers when all of them have come with a value, or when one has been lost.

    Args:
        size: the number of workers.
        secret: of the training.
        end_session: ends a lost worker's session; gets what the worker said of it.
    """

    def __init__(self, size: int, secret: bytes, end_session: Callable[[dict[str, Any]], object]) -> None:
        self._size = size
        self._end_session = end_session
        self._values: dict[str, dict[int, Any]] = {}
        self._sessions: dict[int, list[dict[str, Any]]] = {}
        self._lost: tuple[int, str] | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._listener = Listener(("127.0.0.1", 0), "AF_INET", 4 * size, authkey=secret)
        self.host, self.port = self._listener.address
        threading.Thread(target=self._accept, name="opbox-rendezvous", daemon=True).start()

    def lose(self, rank: int, reason: str) -> None:
        """Note that a worker has ended: the others' waiting ends with an error, and its sessions end."""
        with self._changed:
            self._lost = self._lost or (rank, reason)
            sessions = self._sessions.pop(rank, [])
            self._changed.notify_all()
        for session in sessions:
            self._end_session(session)

    def close(self) -> None:
        """Take no more workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            Client((self.host, self.port)).close()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                worker = self._listener.accept()
            except (OSError, EOFError, AuthenticationError) as error:
                if not self._closed:
                    _log.debug("a connection to the rendezvous was refused: %s", error)
                continue
            threading.Thread(target=self._serve, args=(worker,), name="opbox-rendezvous", daemon=True).start()

    def _serve(self, worker: Connection) -> None:
        with worker, contextlib.suppress(EOFError, OSError):
            while True:
                message = json.loads(worker.recv_bytes(MAX_MESSAGE_BYTES))
                worker.send_bytes(json.dumps(self._answer(message)).encode())

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        rank, name = int(message["rank"]), str(message["name"])
        with self._changed:
            if "session" in message:
                self._sessions.setdefault(rank, []).append(message["session"])
            values = self._values.setdefault(name, {})
            values[rank] = message["value"]
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(values) == self._size or self._lost is not None or self._closed)
            if len(values) == self._size:
                return {"values": [values[one] for one in range(self._size)]}
            lost, reason = self._lost or (rank, "the training has ended")
            return {"lost": lost, "reason": reason}


class Meeting:
    """A worker's connection with the rendezvous.

    Args:
        place: the worker's.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place
        self._lock = threading.Lock()
        try:
            self._connection = Client((place.host, place.port), authkey=bytes.fromhex(place.secret))
        except (OSError, EOFError, AuthenticationError) as error:
            raise MXNetError(
                f"rendezvous: expected the program that has started this worker at {place.host}:{place.port}, got "
                f"{type(error).__name__}: start the workers with mx.dist.launch or `opbox dist run`"
            ) from error

    def gather(self, name: str, value: Any, session: dict[str, Any] | None = None) -> list[Any]:
        """The values that all workers bring under a name, in the order of ranks; waits for them.

        Args:
            name: the same in all workers, and another one each time.
            value: JSON.
            session: of this worker, to be ended if it dies.

        Raises:
            PeerLostError: a worker has ended.
        """
        message = {"rank": self._place.rank, "name": name, "value": value}
        if session is not None:
            message["session"] = session
        with self._lock:
            try:
                self._connection.send_bytes(json.dumps(message).encode())
                answer = json.loads(self._connection.recv_bytes())
            except (OSError, EOFError):
                raise PeerLostError("rendezvous: the program that had started the workers has ended") from None
        if "values" in answer:
            return list(answer["values"])
        raise PeerLostError(
            f"{name}: rank {self._place.rank} of {self._place.size}: rank {answer['lost']} has ended: "
            f"{answer['reason']}: start the workers again, from the last checkpoint",
            detail={"rank": answer["lost"]},
        )
