"""A session: the stream of commands to one device of the engine, or to several GPUs of it.

Commands are recorded and leave in batches: when a value is needed, when `flush` says that a step is complete, or when
a batch is full. Threads of the session send the batches, so the program goes on while they travel and run; a bounded
number is under way at a time. What fails is raised where the program next waits, with the user's line that recorded
the command.

An interrupt (Ctrl-C, or whatever a signal handler raises) may come between any two instructions of the program's main
thread. So that thread changes the state of a batch in two ways only: a command is recorded by one append, which is made
or not, and `_hand_over`, which ends a batch and gives it its number, is shielded from signals. Waiting changes nothing.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from opbox_protocol.commands import Command
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_protocol.signal_shield import is_shielded, shielded
from opbox_protocol.transport import Transport

from .base import source_place
from .batch_stream import WINDOW, BatchStream
from .gate import Gate
from .pending import CommandBatch, Pending

__all__ = ["Pending", "Session"]

BATCH_COMMANDS = 1024
BATCH_BYTES = 64 << 20
IN_FLIGHT_BYTES = 256 << 20
"""Maximum bytes of batches that travel or wait to be sent, if they are many; beyond it the program blocks."""
PATIENCE_AFTER_INTERRUPT_S = 2.0
"""Seconds that the engine has to end what an interrupted program no longer waits for."""


class Session(BatchStream):
    """A session on one device of the engine: it owns arrays there and sends the commands that use them.

    Sessions on several GPUs are views of one (`on_device`): their commands travel in the same batches.

    Args:
        transport: the engine.
        device: "cpu" or "gpu:0".

    Attributes:
        device: as given.
        location: kind and number of the context that its arrays are on: ("gpu", 0).
        id: its name on the engine.
        new_id: makes a number for a new array or executor.
        free: lets go of an array or executor by its number, which leaves with the next batch. Called by finalizers, so
            it takes no lock.
        requests: batches sent so far.
        failures: batches that failed or were cancelled so far.
        stats: what they took on the link.
        warnings, heard: the engine's warnings that the user has not been given yet; and the last ones that came.
        graphs: those that its engine has been sent.
    """

    _views: dict[str, Session]

    def __init__(self, transport: Transport, device: str) -> None:
        self.location: tuple[str, int] = _location(device)
        self._contexts: dict[int, Session] = {self.location[1]: self}
        self._given_up: CommandBatch | None = None
        super().__init__(transport, device)

    def __repr__(self) -> str:
        return f"<Session {self.id} on {self.device}>"

    def __eq__(self, other: object) -> bool:
        """Return whether both are one device of one session; those of two CPU contexts are equal, and not the same."""
        return isinstance(other, Session) and other._recorded is self._recorded and other.device == self.device

    def shares_batches(self, other: object) -> bool:
        """Return whether both are one session of the engine, perhaps on two GPUs: a command copies between them."""
        return isinstance(other, Session) and other._recorded is self._recorded

    def __hash__(self) -> int:
        return id(self._recorded)

    def of_context(self, number: int) -> Session:
        """This session for arrays of CPU context `number`, which compute on the same device and in the same batches."""
        if number == self.location[1] or self.location[0] != "cpu":
            return self
        session = self._contexts.get(number)
        if session is None:
            session = self._contexts.setdefault(number, _ContextSession(self, number))
        return session

    @property
    def views(self) -> list[Session]:
        """This session as each of its devices has it."""
        return list(self._views.values())

    def on_device(self, device: str) -> Session | None:
        """This session on another GPU of the engine, which it gets when it is asked for first; waits for the engine.

        Args:
            device: "gpu:1".

        Returns:
            A session whose commands travel in the same batches; None where the engine has one with code on this one.

        Raises:
            UnsupportedError: the engine has no such GPU.
        """
        view = self._views.get(device)
        if view is not None:
            return view
        view = _DeviceSession(self, device)
        try:
            view.ask({"do": "use_device", "device": device})
        except BadRequestError as error:
            if error.detail.get("one_device"):
                return None
            raise
        return self._views.setdefault(device, view)

    @property
    def in_process(self) -> bool:
        """True if the engine runs in this process and takes Python classes without an upload of their code."""
        return self._transport.in_process

    @property
    def dataset_bytes(self) -> int:
        """Maximum bytes of datasets that the engine stores for this session's owner; 0 where it stores none."""
        return self._limits.dataset_bytes

    def call(self, method: str, path: str, header: dict[str, Any]) -> dict[str, Any]:
        """The answer of a route of the session's engine, beside the session's batches."""
        return dict(self._transport.call(method, path, header).header)

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(self, command: Command, tensor: np.ndarray[Any, Any] | None = None) -> None:
        """Add a command to the batch; `tensor` travels with it, and must not change until it has.

        Raises:
            LimitError: the server takes no request with such a tensor.
            TransportError: the session is closed, or its server is gone.
        """
        self._make_place(1, tensor)
        self._recorded.append((command, source_place(), tensor, None, self.device))
        if tensor is not None:
            self._recording.nbytes += tensor.nbytes
        if len(self._recorded) >= BATCH_COMMANDS or self._recording.nbytes >= BATCH_BYTES:
            if is_shielded():  # a function that is whole or not at all does not wait in its midst
                self._hand_over()
            else:
                self.flush()

    def _make_place(self, commands: int, tensor: np.ndarray[Any, Any] | None = None) -> None:
        """Send what is recorded, if the server would not take it with so many commands, and the tensor, behind it.

        Raises:
            LimitError: the server takes no request with such a tensor.
            TransportError: the session is closed, or its server is gone.
        """
        if self._closed or self._broken is not None:
            self._raise_if_ended()
        limits, count = self._limits, len(self._recorded)
        if len(self._views) > 1:  # each command may have another before it, which names its device
            count, commands = 2 * count, 2 * commands
        if tensor is not None:
            limits.check(tensor)
        if count + commands > limits.commands or (
            tensor is not None and not limits.has_place(tensor, count, self._recording.nbytes)
        ):
            self.flush()

    def fetch(self, id: int) -> Pending:
        """The value that the array has at this point of the stream, when it has come."""
        self._make_place(1)
        pending = Pending(self)
        self._recorded.append(({"do": "fetch", "id": id, "as": ""}, source_place(), None, pending, self.device))
        return pending

    def describe(self, id: int, command: Literal["describe", "describe_executor"] = "describe") -> dict[str, Any]:
        """Return the engine's description of an array (shape, datatype) or executor; waits for the answer."""
        if command == "describe":
            return self.ask({"do": "describe", "id": id})
        return self.ask({"do": "describe_executor", "id": id})

    def ask(self, command: Command) -> dict[str, Any]:
        """Return the result of a command; waits for the answer."""
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Command]) -> list[dict[str, Any]]:
        """Return the results of commands that travel together; waits for the answers."""
        self._make_place(len(commands))
        place = source_place()
        waiting = [Pending(self) for _ in commands]
        self._recorded.extend(
            [(c, place, None, pending, self.device) for c, pending in zip(commands, waiting, strict=True)]
        )
        return [pending.result() for pending in waiting]

    # -- waiting -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is recorded, without waiting for it. With nothing recorded, nothing is sent."""
        if self._recorded:
            shielded(self._hand_over)
            if len(self._window) > WINDOW:
                self._window[-1 - WINDOW].taken.wait()
            in_flight = [batch for batch in list(self._window) if not batch.done.is_open]
            if len(in_flight) > WINDOW + 2 and sum(batch.nbytes for batch in in_flight) > IN_FLIGHT_BYTES:
                in_flight[0].done.wait()

    def wait(self) -> None:
        """Wait until everything recorded so far has run.

        Raises:
            MXNetError: the first command that failed since the last wait.
        """
        if not self._recorded and not self.requests:
            return
        self._raise_if_ended()
        if self._is_quiet:
            self.raise_pending()
            self.warn()
            return
        batch = self._wait_for(None)
        if batch.error is not None:
            self.delivered(batch.error)
            raise batch.error
        self.raise_pending()
        self.warn()

    def drain(self) -> None:
        """Wait until what has been sent is answered, whatever became of it. Nothing is sent for this."""
        for batch in list(self._window):
            batch.done.wait()

    def _wait_for(self, pending: Pending | None) -> CommandBatch:
        """Send what is recorded, if the value's command is among it, and wait; for all of it without a value."""
        batch = pending.batch if pending is not None else None
        if batch is None:
            batch = shielded(self._hand_over, pending, True, on_interrupt=self._note_interrupt)
        try:
            batch.done.wait()
        except BaseException:
            self._give_up(batch)
            raise
        return batch

    def warn(self) -> None:
        """Give the user the warnings that have come, in the thread that waits for a value."""
        self._warnings.give()

    # -- cancelling ----------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop what the engine does for the session at its next step, and drop what has been recorded.

        Who waits for a value gets a CancelledError. The session goes on; its arrays are as the last whole step left
        them.
        """
        shielded(self._begin_to_cancel)
        self._cancelling.wait()

    def _begin_to_cancel(self, last: CommandBatch | None = None) -> None:
        """Cancel all batches in a thread; send later ones after that.

        Args:
            last: nothing happens when another batch has been handed over since.
        """
        with self._lock:
            if self._closed or self._broken is not None or (last is not None and last.seq != self._sealed):
                return
            if self._recorded and last is None:
                self._enqueue(self._seal())
            self._cancelled = self._sealed
            self.failures += 1
            self._cancelling = Gate()
            _thread.start_new_thread(self._cancel, (self._cancelling, self._path))

    def _cancel(self, cancelling: Gate, path: str) -> None:
        try:
            with contextlib.suppress(MXNetError):
                self._transport.call("DELETE", path)
        finally:
            cancelling.open()

    def _note_interrupt(self) -> None:
        """Called between any two instructions of `_hand_over` when Ctrl-C comes."""
        if self._here is not None:
            self._give_up(self._here)

    def _give_up(self, batch: CommandBatch) -> None:
        """Stop an interrupted program's batch on the engine, unless it ends soon.

        A batch that changes what was there before goes on to its end: half of a step would be lost otherwise.
        """
        if not batch.done.is_open and self._given_up is None and batch.only_computes():
            self._given_up = batch
            _thread.start_new_thread(self._stop_in_time, (batch,))

    def _stop_in_time(self, batch: CommandBatch) -> None:
        time.sleep(PATIENCE_AFTER_INTERRUPT_S)
        self._given_up = None
        if not batch.done.is_open and batch.path == self._path:
            self._begin_to_cancel(batch)


def _location(device: str) -> tuple[str, int]:
    kind, _, number = device.partition(":")
    return kind, int(number or 0)


class _ContextSession(Session):
    """A session as one of several CPU contexts has it: the same state, and arrays with that context's number.

    Args:
        session: whose state it shares.
        number: the context's.
    """

    __slots__ = ("location",)
    location: tuple[str, int]

    def __init__(self, session: Session, number: int) -> None:
        self.__dict__ = session.__dict__
        self.location = session.device, number


class _DeviceSession(Session):
    """A session as another of its GPUs has it: the same state, and commands that run there.

    Args:
        session: whose state it shares.
        device: "gpu:1".
    """

    __slots__ = ("device", "location")
    device: str
    location: tuple[str, int]

    def __init__(self, session: Session, device: str) -> None:
        self.__dict__ = session.__dict__
        self.device = device
        self.location = _location(device)
