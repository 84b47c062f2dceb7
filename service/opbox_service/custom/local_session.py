"""LocalSession: runs `mx.nd` inside a user's operator at once, on the engine's own arrays.

A LocalSession takes a client session's place: the same NDArray, the same generated functions, and the same commands as
in a session (`commands`), but `record` runs a command when it comes. Wrapping an array copies nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox.context import Context
from opbox.known_graphs import KnownGraphs
from opbox.ndarray import NDArray
from opbox.session_scope import SessionScope
from opbox_ops.backend import Backend, RandomSource, backend_for
from opbox_ops.compute import Array
from opbox_protocol.errors import MXNetError, error_from_json, error_to_json

from ..commands import ArrayTable, parse_one
from ..commands.array_table import WRITES_TO_INPUT, ArrayEntry, KeepDefinition
from ..quota import Budget, MeteredBackend
from .user_traceback import READ_ONLY

__all__ = ["LocalSession"]

TENSOR = "tensor"
"""The name of the one tensor that comes with a command."""


class _Ready:
    """A value that has come (see opbox.pending.Pending)."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._value


class _LocalExchange:
    """The exchange of one command inside an operator (see commands.Exchange)."""

    __slots__ = ("_tensor", "output", "result")

    def __init__(self, tensor: np.ndarray[Any, Any] | None = None) -> None:
        self._tensor = tensor
        self.output: Any = None
        self.result: dict[str, Any] = {}

    @property
    def following(self) -> None:
        """Nothing: each command is by itself."""

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        assert self._tensor is not None
        return self._tensor

    def device_copy(self, name: str, backend: Backend) -> Array:
        """The tensor itself on the CPU: mx.nd has made it for this."""
        host = self.tensor(name)
        return host if backend.device_type == "cpu" else backend.put(host)

    def send(self, name: str, array: Array, backend: Backend) -> None:
        host = backend.get(array)
        self.output = host.copy() if isinstance(array, np.ndarray) else host

    def report(self, **result: Any) -> None:
        self.result = result


class LocalSession:
    """Arrays of one device of this process.

    Args:
        backend, random: the device.
        device: its name, "cpu" or "gpu:0".
        budget: counts the memory of the arrays that are made here.
        define: takes the class of an operator that another one calls.
    """

    in_process = True
    requests = 0

    def __init__(
        self, backend: Backend, random: RandomSource, device: str, budget: Budget, define: KeepDefinition
    ) -> None:
        self.device = device
        self.graphs = KnownGraphs()
        self._table = ArrayTable(backend, random, device, budget, define)
        self._others: dict[str, LocalSession] = {device: self}
        self.new_id = itertools.count(1).__next__
        kind, _, number = device.partition(":")
        self.location = kind, int(number or 0)
        self.context = Context(*self.location)

    def __repr__(self) -> str:
        return f"<LocalSession on {self.device}>"

    def inside(self) -> SessionScope:
        """A block in which new arrays are made here."""
        return SessionScope(self, self.context)

    def on(self, device: str) -> LocalSession:
        """The local session on another device."""
        if device == "gpu:0" and self.device == "gpu":
            return self
        if device not in self._others:
            backend, budget = backend_for(device), self._table.budget
            metered: Any = MeteredBackend(backend, budget)
            other = LocalSession(metered, backend.random(0), device, budget, self._table.define)
            other._others = self._others
            self._others[device] = other
        return self._others[device]

    def add(self, backend: Backend, random: RandomSource, device: str, budget: Budget) -> None:
        """Be on a further device by a backend of the session's own."""
        other = LocalSession(backend, random, device, budget, self._table.define)
        other._others = self._others
        self._others[device] = other

    def shares_batches(self, other: object) -> bool:
        """Return whether a command of this one reaches the arrays of another: of its own device."""
        return other is self

    def of_context(self, number: int) -> LocalSession:
        """This one: inside an operator all CPU contexts are the one that it runs on."""
        return self

    def wrap(self, array: Array, *, read_only: bool = False) -> NDArray:
        """A handle on an array, whose memory is not counted here; writing to a `read_only` one is refused."""
        id = self.new_id()
        if read_only and isinstance(array, np.ndarray):
            array = array.view()
            array.flags.writeable = False
        self._table.add(id, ArrayEntry(array, None, read_only=read_only))
        session: Any = self  # it does for arrays what a client's session does
        return NDArray(session, id, tuple(array.shape), array.dtype)

    def missing(self, reason: str) -> NDArray:
        """A handle on an array that is not there; using it raises MXNetError with the reason."""
        return _Missing(self, reason)

    def array(self, id: int) -> Array:
        """The array behind a handle."""
        return self._table.array(id)

    def clear(self) -> None:
        """Drop all arrays."""
        for session in set(self._others.values()):
            session._table.clear()

    # -- a client session's methods -----------------------------------------------------------------------------

    def record(self, command: Mapping[str, Any], tensor: Any = None) -> None:
        """Run a command.

        Raises:
            MXNetError: of the class that a session would raise; also when an operator writes to its input.
        """
        self._run(command if tensor is None else {**command, "tensor": TENSOR}, tensor)

    def fetch(self, id: int) -> _Ready:
        return _Ready(self._run({"do": "fetch", "id": id, "as": ""}).output)

    def describe(self, id: int, command: str = "describe") -> dict[str, Any]:
        return self.ask({"do": command, "id": id})

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command; its result."""
        return self._run(command).result

    def ask_all(self, commands: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run commands; their results."""
        return [self.ask(command) for command in commands]

    def free(self, id: int) -> None:
        self._table.drop(id)

    def flush(self) -> None:
        """Do nothing: no command waits."""

    def wait(self) -> None:
        self._table.backend.synchronize()

    def raise_pending(self) -> None:
        """Do nothing: errors are raised where they happen."""

    def _run(self, command: Mapping[str, Any], tensor: Any = None) -> _LocalExchange:
        exchange = _LocalExchange(tensor)
        try:
            with self._table.budget.settling():
                parse_one(command).run(self._table, exchange)
        except MXNetError as error:
            if any(phrase in error.message for phrase in READ_ONLY):
                raise MXNetError(WRITES_TO_INPUT) from None
            # Anew: the traceback that the user reads begins at his own call.
            raise error_from_json(*error_to_json(error)) from error
        return exchange


class _Missing(NDArray):
    """An array that an operator is not given: any use of it says why."""

    __slots__ = ("_reason",)

    def __init__(self, session: Any, reason: str) -> None:
        super().__init__(session, 0)
        del self.__del__  # there is nothing to free
        self._reason = reason

    def _describe(self) -> None:
        raise MXNetError(self._reason)

    def _fetch_async(self) -> Any:
        raise MXNetError(self._reason)

    @property
    def _id(self) -> int:
        raise MXNetError(self._reason)

    @_id.setter
    def _id(self, value: int) -> None:
        """Ignore the number: there is no array to have one."""

    def __repr__(self) -> str:
        return f"<NDArray that is not there: {self._reason}>"
