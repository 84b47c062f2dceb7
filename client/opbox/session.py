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
import itertools
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from opbox_protocol import routes
from opbox_protocol.commands import Command
from opbox_protocol.errors import BadRequestError, CancelledError, InternalError, MXNetError, TransportError, WireError
from opbox_protocol.signal_shield import is_shielded, shielded
from opbox_protocol.transport import Reply, Transport

from .base import CodePlace, line_of, source_place, user_level
from .batch_senders import MAX_SENDERS, BatchSenders
from .forks import AfterFork, of_the_parent
from .gate import Gate
from .known_graphs import known_graphs, needed_names
from .link_use import LinkUse
from .operator.sending import forget_sent
from .pending import CommandBatch, Pending
from .request_limits import RequestLimits
from .session_opening import open_session
from .unfilled_places import UnfilledPlaces

__all__ = ["Pending", "Session"]

BATCH_COMMANDS = 1024
BATCH_BYTES = 64 << 20
WINDOW = 4
"""Maximum number of batches that wait to be sent; beyond it the program blocks."""
IN_FLIGHT_BYTES = 256 << 20
"""Maximum bytes of batches that travel or wait to be sent, if they are many; beyond it the program blocks."""
PACE = 4
"""Every 4th batch is sent synchronously, as back-pressure."""
PATIENCE = 60.0
"""Seconds to try again when the engine takes no more batches."""
PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
"""Seconds before the first retry, doubled each time, and their maximum."""
LOST = "all arrays and executors there are lost; fit(checkpoint_every=…) goes on from a checkpoint after a loss"
"""What an error says about a session whose server has ended."""
KEPT_WARNINGS = 100
"""Number of the engine's last warnings to keep."""
KEPT_BATCHES = 256
"""Number of batches whose user lines are remembered, for errors that arrive late."""
PATIENCE_AFTER_INTERRUPT_S = 2.0
"""Seconds that the engine has to end what an interrupted program no longer waits for."""

_Recorded: TypeAlias = tuple[Command, CodePlace, np.ndarray[Any, Any] | None, Pending | None, str]
"""A command, the user's line, what travels and who waits, and the device that it runs on."""


class Session(AfterFork):
    """A session on one device of the engine: it owns arrays there and sends the commands that use them.

    Sessions on several GPUs are views of one (`on_device`): their commands travel in the same batches.

    Args:
        transport: the engine.
        device: "cpu" or "gpu:0".

    Attributes:
        device: as given.
        location: kind and number of the context that its arrays are on: ("gpu", 0).
        new_id: makes a number for a new array or executor.
        free: lets go of an array or executor by its number, which leaves with the next batch. Called by finalizers, so
            it takes no lock.
        requests: batches sent so far.
        failures: batches that failed or were cancelled so far.
        stats: what they took on the link.
        warnings, heard: the engine's warnings that the user has not been given yet; and the last ones that came.
        graphs: those that its engine has been sent.
    """

    def __init__(self, transport: Transport, device: str) -> None:
        self._recorded: deque[_Recorded] = deque()  # first: the session's hash is its own
        super().__init__()
        self.device = device
        self.location: tuple[str, int] = _location(device)
        self.requests = 0
        self.failures = 0
        self.graphs = known_graphs(transport)
        self._transport = transport
        self._link = LinkUse()
        self.new_id = itertools.count(1).__next__
        self._seq = itertools.count(1)
        self._lock = threading.Lock()
        self._contexts: dict[int, Session] = {self.location[1]: self}
        self._first = device
        self._views: dict[str, Session] = {device: self}
        self._recorded_bytes = 0
        self._freed: deque[int] = deque()
        self.free = self._freed.append
        self._places: dict[int, list[CodePlace]] = {}
        self.warnings: deque[str] = deque()
        self.heard: deque[str] = deque(maxlen=KEPT_WARNINGS)
        self._warned: set[str] = set()
        self._error: Exception | None = None
        self._broken: Exception | None = None
        self._loss = ""
        self._loss_lock = threading.Lock()
        self._closed = False
        self._sealed = 0
        self._cancelled = 0
        self._cancelling = Gate()
        self._cancelling.open()
        self._here: CommandBatch | None = None
        self._given_up: CommandBatch | None = None
        self._unfilled = UnfilledPlaces(transport)
        self._enter(open_session(transport, [device]))
        self._queue: queue.SimpleQueue[CommandBatch | None] = queue.SimpleQueue()
        self._window: deque[CommandBatch] = deque(maxlen=MAX_SENDERS + 2 * WINDOW + 2)
        self._senders = BatchSenders(self._send_all, device, transport.connections, grows=not transport.in_process)

    def _enter(self, answer: dict[str, Any]) -> None:
        """Use the session that the engine has opened."""
        self.id: str = answer["id"]
        self._ttl = float(answer.get("ttl_s", 600))
        self._path = routes.COMMANDS.format(id=self.id)
        self._limits = RequestLimits(answer.get("limits", {}), self._transport.address)

    def reopen(self) -> None:
        """Start a new session after the engine lost the old one; commands in flight fail.

        Ids go on, so that what is restored may have the ids that it had.
        """
        shielded(self._begin_anew, open_session(self._transport, list(self._views)))

    def _begin_anew(self, answer: dict[str, Any]) -> None:
        with self._lock, self._loss_lock:
            self._enter(answer)
            lost = self._broken or TransportError("the session was begun anew")
            self._take_recorded().fail(lost)
            self._seq = itertools.count(1)
            self._sealed = self._cancelled = 0
            self._unfilled.clear()
            self._places.clear()
            self._error = self._broken = None

    def become_childs(self) -> None:
        """It is the parent's: nothing of this process is sent there, and nothing is ended."""
        self._lock, self._loss_lock = threading.Lock(), threading.Lock()
        self._closed, self._broken = True, of_the_parent()
        self._take_recorded().fail(self._broken)
        for batch in self._window:
            batch.fail(self._broken)

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
    def stats(self) -> dict[str, float]:
        """What the session's requests took so far.

        `requests`; `bytes_up` and `bytes_down` of their bodies; `seconds` of all requests that were answered, those
        that travelled at a time counted together; `link_seconds`, which the server did not need for them; and
        `link_share` of the seconds. An engine in this process has no link.

        Example:
            >>> mx.cpu().session.stats["link_share"]
            0.07
        """
        return {"requests": self.requests, **self._link.json()}

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

    @property
    def lost(self) -> bool:
        """True if the engine has ended this session (user code crashed, the server restarted): its arrays are gone."""
        return self._broken is not None

    @property
    def loss(self) -> str:
        """Why the engine has ended it, or did before it was begun anew; empty while it has not."""
        return self._loss

    # -- recording --------------------------------------------------------------------------------------------

    def record(self, command: Command, tensor: np.ndarray[Any, Any] | None = None) -> None:
        """Add a command to the batch; `tensor` travels with it, and must not change until it has.

        Raises:
            LimitError: the server takes no request with such a tensor.
            TransportError: the session is closed, or its server is gone.
        """
        self._make_place(1, tensor)
        self._recorded.append((command, source_place(), tensor, None, self.device))
        if tensor is not None:
            self._recorded_bytes += tensor.nbytes
        if len(self._recorded) >= BATCH_COMMANDS or self._recorded_bytes >= BATCH_BYTES:
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
            tensor is not None and not limits.has_place(tensor, count, self._recorded_bytes)
        ):
            self.flush()

    def _raise_if_ended(self) -> None:
        if self._closed or self._broken is not None:
            raise self._broken or TransportError("the session is closed: its arrays are gone")

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
        batch = self._wait_for(None)
        if batch.error is not None:
            self.delivered(batch.error)
            raise batch.error
        self.raise_pending()
        self.warn()

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

    def raise_pending(self) -> None:
        """Raise, once, the error of a batch whose answer was not waited for."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _hear(self, sentences: Sequence[str]) -> None:
        """Keep the engine's warnings for the user's thread, each sentence once."""
        self.heard.extend(sentences)
        for sentence in sentences:
            if sentence not in self._warned:
                self._warned.add(sentence)
                self.warnings.append(sentence)

    def warn(self) -> None:
        """Give the user the warnings that have come, in the thread that waits for a value."""
        while self.warnings:
            warnings.warn(self.warnings.popleft(), stacklevel=user_level())

    def delivered(self, error: Exception) -> None:
        """Note that an error has been raised to the user."""
        if self._error is error:
            self._error = None

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

    def _take_freed(self) -> list[int]:
        freed = []
        while self._freed:
            freed.append(self._freed.popleft())
        return freed

    def _take_recorded(self) -> CommandBatch:
        """Return the recorded commands as a batch, followed by earlier frees."""
        freed = self._take_freed()
        batch, recorded, device = CommandBatch(), self._recorded, self._first
        for _ in range(len(recorded)):  # no fewer than were recorded when the arrays were freed
            command, place, tensor, pending, where = recorded.popleft()
            if where != device:
                batch.add({"do": "use_device", "device": where}, place)
                device = where
            batch.add(command, place, tensor, pending)
        if freed:
            batch.commands.append({"do": "free", "ids": freed})
            batch.places.append(None)
        batch.nbytes, self._recorded_bytes = self._recorded_bytes, 0
        return batch

    def _seal(self) -> CommandBatch:
        """End the batch that is being recorded; it has its place in the order from here on."""
        batch = self._take_recorded()
        batch.seq = self._sealed = next(self._seq)
        batch.path = self._path
        self._places[batch.seq] = batch.places
        self._places.pop(batch.seq - KEPT_BATCHES, None)
        self.requests += 1
        return batch

    def _enqueue(self, batch: CommandBatch) -> None:
        self._queue.put(batch)
        self._window.append(batch)

    def _hand_over(self, pending: Pending | None = None, waited_for: bool = False) -> CommandBatch:
        """End the batch that is being recorded and hand it to the senders, or send it: its value is waited for, and
        the engine runs it in this thread, at once. No interrupt lands here: call it by `shielded`.

        Args:
            pending: a value whose batch is waited for; nothing happens if another thread has ended it.
            waited_for: whether the calling thread will wait for it.
        """
        with self._lock:
            if pending is not None and pending.batch is not None:
                return pending.batch
            if self._closed or self._broken is not None:
                batch = self._take_recorded()
                batch.fail(self._broken or TransportError("the session is closed: its arrays are gone"))
                return batch
            here = waited_for and self._transport.runs_at_once(self._path, self._sealed + 1)
            batch = self._seal()
            batch.waited_for = waited_for and pending is None
            if not here:
                self._enqueue(batch)
        if here:
            self._here = batch
            try:
                self._send(batch)
            finally:
                self._here = None
        return batch

    # -- sending ----------------------------------------------------------------------------------------------

    def _next(self) -> CommandBatch | None:
        """The next batch to send; an empty one when the session would expire for want of commands."""
        while True:
            try:
                return self._queue.get(timeout=LONGEST_PAUSE_S if self._unfilled else self._ttl / 3)
            except queue.Empty:
                if self._unfilled:
                    self._unfilled.fill()
                    continue
                with self._lock:
                    if self._queue.empty() and not self._recorded and not self._closed and self._broken is None:
                        self._enqueue(self._seal())

    def _send_all(self) -> None:
        while (batch := self._next()) is not None:
            batch.taken.open()
            self._send(batch)
            if batch.link_s is not None and self._senders.answered(batch.link_s):
                with self._lock:
                    if not self._queue.empty() and not self._closed:
                        self._senders.grow()

    def _send(self, batch: CommandBatch) -> None:
        """Send a batch and distribute its results; errors go to the waiting callers."""
        if self._broken is not None or batch.path != self._path:
            batch.fail(self._broken or TransportError("the session was begun anew: its arrays are gone"))
            return
        if batch.seq <= self._cancelled:
            batch.cut()
        else:
            self._cancelling.wait()
        if self._unfilled:
            self._unfilled.fill()
        header = {"seq": batch.seq, "commands": batch.commands, "wait": batch.waits or batch.seq % PACE == 0}
        try:
            reply = self._post(header, batch)
            batch.tensors = {}
            if sentences := reply.header.get("warnings"):
                self._hear(sentences)
            batch.settle(reply)
        except (TransportError, WireError) as error:
            self._failed(batch, error, fatal=True)
        except MXNetError as error:
            if "command" not in error.detail and error.status in (400, 413, 422, 429):
                self._unfilled.add(batch.path, batch.seq)
                self._unfilled.fill()
            self._failed(batch, self._with_line(error, batch), fatal=error.status in (401, 403, 404, 410, 503))
        except Exception as error:
            fault = InternalError(f"internal error: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._failed(batch, fault, fatal=True)
        except BaseException:  # an interrupt of the user's own code, which runs in this thread
            self.failures += 1
            batch.fail(CancelledError(f"batch {batch.seq} was interrupted"))
            raise

    def _post(self, header: dict[str, Any], batch: CommandBatch) -> Reply:
        """Send a batch; again while the engine has too much waiting, since no batch after it could run without it.

        A quota that has nothing left for longer than that is told at once. A batch that names a graph which the engine
        has forgotten is refused before any of it runs, and sent again with it.
        """
        until, pause = 0.0, PAUSE_S
        while True:
            if batch.about_graphs:
                header["graphs"] = needed_names(command["graph"] for command in batch.about_graphs)
            try:
                reply = self._transport.call("POST", batch.path, header, batch.tensors)
            except MXNetError as error:
                if batch.put_graph(error):
                    continue
                refused = error.status == 429 and "command" not in error.detail
                until = until or time.monotonic() + PATIENCE
                if not refused or time.monotonic() + error.detail.get("retry_after_s", 0) > until:
                    raise
            else:
                if reply.travel is not None:
                    batch.link_s = self._link.add(reply.travel)
                return reply
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _failed(self, batch: CommandBatch, error: Exception, fatal: bool) -> None:
        for view in self._views.values():
            forget_sent(view)  # source that was in it, or behind it, may not have come: it is sent again
        self.failures += 1
        with self._loss_lock:  # whoever records holds the other while it waits for the senders
            if batch.path == self._path:
                if fatal and not self._about_arrays(error):
                    self._loss = self._loss if self._broken is not None else str(error)
                    self._broken = error
                    if isinstance(error, TransportError):
                        error.reword(f"{error}; {LOST}")
                self._error = error
        batch.fail(error)

    @staticmethod
    def _about_arrays(error: Exception) -> bool:
        """Return whether `error` concerns one command (an array that does not exist) and not the whole session."""
        return isinstance(error, MXNetError) and "command" in error.detail

    def _with_line(self, error: MXNetError, batch: CommandBatch) -> MXNetError:
        """The error with the line of the user's code that recorded the command."""
        places = self._places.get(error.detail.get("seq", batch.seq))
        command = error.detail.get("command")
        if places is None or not isinstance(command, int) or not 0 <= command < len(places):
            return error
        line = line_of(places[command])
        message = str(error)
        if line is None or line in message:
            return error
        error.reword(f"{message} ({line})")
        return error

    def close(self, timeout: float = 10.0) -> None:
        """Send what is recorded, end the session on the engine, and stop the threads."""
        if not shielded(self._end):
            return
        self._senders.join(timeout)
        with contextlib.suppress(MXNetError):  # it may have gone already, or its server
            self._transport.call("DELETE", routes.SESSION.format(id=self.id))

    def end_at_once(self) -> None:
        """End the session on the engine, with what it does and what waits; whatever else this process does meanwhile.

        It takes no lock, and a connection of its own.
        """
        with contextlib.suppress(MXNetError):
            self._transport.another().call("DELETE", routes.SESSION.format(id=self.id))

    def _end(self) -> bool:
        """Let the threads send what is recorded, then end; False if they were told before."""
        with self._lock:
            if self._closed:
                return False
            if self._broken is None and self._recorded:
                self._enqueue(self._seal())
            self._closed = True
            for _ in range(len(self._senders)):
                self._queue.put(None)
        return True


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
