"""Values on their way, and the batches of commands that bring them."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opbox_protocol.commands import Command
from opbox_protocol.errors import CancelledError, MXNetError
from opbox_protocol.transport import Reply

from .base import CodePlace
from .known_graphs import GraphName, is_unknown

if TYPE_CHECKING:
    from .session import Session

__all__ = ["CommandBatch", "Pending"]


class Pending:
    """A value that is on its way: `result()` waits for it."""

    __slots__ = ("_arrives", "_batch", "_done", "_error", "_session", "_value")

    def __init__(self, session: Session, batch: CommandBatch) -> None:
        self._session = session
        self._batch = batch
        self._done = False
        # Locked until it has come: a lock takes a tenth of the time of an event.
        self._arrives = threading.Lock()
        self._arrives.acquire()
        self._value: Any = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return whether it has come."""
        return self._done

    def result(self) -> Any:
        """The value.

        Raises:
            MXNetError: the command, or one that it rests on, failed.
            TransportError: the server is gone.
        """
        if not self._done:
            self._session._send_if_open(self._batch)
            try:
                # A batch that fails a second time meanwhile has let the lock go already.
                with contextlib.suppress(RuntimeError), self._arrives:
                    pass
            except KeyboardInterrupt:
                self._session.cancel()
                raise
        if self._error is not None:
            self._session.delivered(self._error)
            raise self._error
        return self._value

    def _settle(self, value: Any = None, error: Exception | None = None) -> None:
        self._value, self._error = value, error
        self._done = True
        with contextlib.suppress(RuntimeError):  # it has been settled before: a batch may fail twice
            self._arrives.release()


class CommandBatch:
    """Commands that travel together, and who waits for what of them.

    Attributes:
        waited_for: whether somebody waits for it, though it brings nothing.
        error: what it came to.
    """

    __slots__ = (
        "about_graphs",
        "bytes",
        "commands",
        "described",
        "error",
        "fetched",
        "path",
        "places",
        "seq",
        "tensors",
        "waited_for",
    )

    def __init__(self) -> None:
        self.seq = 0
        self.path = ""
        self.commands: list[Command] = []
        self.about_graphs: list[dict[str, Any]] = []
        self.places: list[CodePlace] = []
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        self.bytes = 0
        self.fetched: dict[str, Pending] = {}
        self.described: dict[int, Pending] = {}
        self.waited_for = False
        self.error: Exception | None = None

    def add(self, command: Command, place: CodePlace, tensor: np.ndarray[Any, Any] | None = None) -> int:
        """Append a command with its tensor, if any, and return its place in the batch."""
        if tensor is not None:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = tensor
            self.bytes += tensor.nbytes
            cast("dict[str, Any]", command)["tensor"] = name
        if "graph" in command:
            self.about_graphs.append(cast("dict[str, Any]", command))
        self.commands.append(command)
        self.places.append(place)
        return len(self.commands) - 1

    def put_graph(self, error: MXNetError) -> bool:
        """Put the graph in the place of the name that the engine did not know; False when the error is another one."""
        if "command" not in error.detail:
            for command in self.about_graphs:
                name = command["graph"]
                if isinstance(name, GraphName) and is_unknown(name, error):
                    command["graph"] = name.document
                    return True
        return False

    def cut(self) -> None:
        """Take out of a cancelled batch what the engine need not do; what has been freed stays freed."""
        self.fail(CancelledError(f"batch {self.seq} was cancelled"))
        remaining: list[Command] = [command for command in self.commands if command["do"] in ("free", "define")]
        self.commands, self.about_graphs, self.tensors = remaining, [], {}
        self.places[:] = [None] * len(remaining)
        self.fetched, self.described, self.waited_for = {}, {}, False

    @property
    def waits(self) -> bool:
        return self.waited_for or bool(self.fetched or self.described)

    def fail(self, error: Exception) -> None:
        self.error = error
        for pending in (*self.fetched.values(), *self.described.values()):
            pending._settle(error=error)

    def settle(self, reply: Reply) -> None:
        for name, pending in self.fetched.items():
            pending._settle(reply.tensors[name])
        if self.described:
            results = {result["command"]: result for result in reply.header.get("results", ())}
            for command, pending in self.described.items():
                pending._settle(results[command])
