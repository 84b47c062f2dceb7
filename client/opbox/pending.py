"""Values on their way, and the batches of commands that bring them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opbox_protocol.commands import Command
from opbox_protocol.errors import CancelledError, MXNetError
from opbox_protocol.transport import Reply

from .base import CodePlace
from .gate import Gate
from .known_graphs import GraphName, is_unknown

if TYPE_CHECKING:
    from .session import Session

__all__ = ["CommandBatch", "Pending"]

_ASKS = ("fetch", "describe", "describe_executor", "infer_shape", "infer_type")
_COMPUTES = frozenset(("put", "zeros", "view", "invoke", "free", "use_device", *_ASKS))
"""Commands that change nothing that was there before."""


class Pending:
    """A value that is on its way: `result()` waits for it.

    Attributes:
        batch: that its command leaves with; None while it is being recorded.
    """

    __slots__ = ("_error", "_session", "_value", "batch")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.batch: CommandBatch | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return whether it has come."""
        return self.batch is not None and self.batch.done.is_open

    def result(self) -> Any:
        """The value.

        Raises:
            MXNetError: the command, or one that it rests on, failed.
            TransportError: the server is gone.
        """
        if not self.done():
            self._session._wait_for(self)
        if self._error is not None:
            self._session.delivered(self._error)
            raise self._error
        if self._session.warnings:
            self._session.warn()
        return self._value

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """Store the result; the batch then releases its waiting callers."""
        self._value, self._error = value, error


class CommandBatch:
    """A batch of commands with the callers that wait for its results.

    Attributes:
        nbytes: of its tensors.
        waited_for: whether somebody waits for it, though it brings nothing.
        link_s: seconds that it and its answer were on the link; None while unknown, and within one process.
        error: what it came to.
        trace: the OpenTelemetry context of the thread that ended it, if any.
        ended: whether it and all before it have run, as its answer says: what it had the device do has been done.
        taken: opens when a thread begins to send it.
        done: opens when it has been answered, or has failed.
    """

    __slots__ = (
        "about_graphs",
        "commands",
        "described",
        "done",
        "ended",
        "error",
        "fetched",
        "link_s",
        "nbytes",
        "path",
        "places",
        "seq",
        "taken",
        "tensors",
        "trace",
        "waited_for",
    )

    def __init__(self) -> None:
        self.seq = 0
        self.path = ""
        self.commands: list[Command] = []
        self.about_graphs: list[dict[str, Any]] = []
        self.places: list[CodePlace] = []
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        self.fetched: dict[str, Pending] = {}
        self.described: dict[int, Pending] = {}
        self.nbytes = 0
        self.link_s: float | None = None
        self.waited_for = False
        self.error: Exception | None = None
        self.trace: Any = None
        self.ended = False
        self.taken = Gate()
        self.done = Gate()

    def add(
        self,
        command: Command,
        place: CodePlace,
        tensor: np.ndarray[Any, Any] | None = None,
        pending: Pending | None = None,
    ) -> None:
        """Append a command with its tensor, if any, and who waits for its result."""
        if tensor is not None:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = tensor
            cast("dict[str, Any]", command)["tensor"] = name
        rows: Any = command.get("rows")
        if rows is not None:  # numbers of rows: one tensor for all commands that have the same
            known = next((name for name, one in reversed(self.tensors.items()) if one is rows), f"t{len(self.tensors)}")
            self.tensors[known] = rows
            cast("dict[str, Any]", command)["rows"] = known
        if "graph" in command:
            self.about_graphs.append(cast("dict[str, Any]", command))
        if pending is not None:
            pending.batch = self
            if command["do"] == "fetch":
                name = command["as"] = f"o{len(self.fetched)}"
                self.fetched[name] = pending
            else:
                self.described[len(self.commands)] = pending
        self.commands.append(command)
        self.places.append(place)

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

    def only_computes(self) -> bool:
        """Return whether its commands change nothing that was there before."""
        return all(command["do"] in _COMPUTES and not command.get("into") for command in self.commands)

    @property
    def waits(self) -> bool:
        """Whether a caller waits for the batch."""
        return self.waited_for or bool(self.fetched or self.described)

    def fail(self, error: Exception) -> None:
        """Pass this error to all waiting callers."""
        self.error = error
        for pending in (*self.fetched.values(), *self.described.values()):
            pending.settle(error=error)
        self.done.open()

    def settle(self, reply: Reply) -> None:
        """Pass the results to all waiting callers."""
        for name, pending in self.fetched.items():
            pending.settle(reply.tensors[name])
        if self.described:
            results = {result["command"]: result for result in reply.header.get("results", ())}
            for command, pending in self.described.items():
                pending.settle(results[command])
        self.done.open()

    def release(self) -> None:
        """Let go of the values that it brought: a session remembers its last batches."""
        self.fetched, self.described = {}, {}
