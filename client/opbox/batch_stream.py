"""BatchStream: a session's batches in their order, the threads that send them, and what their answers come to.

The other half of a session, which records commands and waits for values, is `Session`.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import deque
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import CancelledError, InternalError, MXNetError, TransportError, WireError
from opbox_protocol.signal_shield import shielded
from opbox_protocol.transport import Reply, Transport

from .batch_posting import LONGEST_PAUSE_S, post_batch
from .batch_senders import MAX_SENDERS, BatchSenders
from .command_places import CommandPlaces
from .engine_warnings import EngineWarnings
from .forks import AfterFork, of_the_parent
from .gate import Gate
from .known_graphs import known_graphs
from .link_use import LinkUse
from .operator.sending import forget_sent
from .pending import CommandBatch, Pending
from .recorded_commands import RecordedCommands
from .request_limits import RequestLimits
from .session_opening import open_session
from .session_way import SessionWay, direct_wanted
from .trace_context import attached, current_context
from .unfilled_places import UnfilledPlaces

__all__ = ["WINDOW", "BatchStream"]

WINDOW = 4
"""Maximum number of batches that wait to be sent; beyond it the program blocks."""
PACE = 4
"""Every 4th batch is sent synchronously, as back-pressure."""
LOST = "all arrays and executors there are lost; fit(checkpoint_every=…) goes on from a checkpoint after a loss"
"""What an error says about a session whose server has ended."""


class BatchStream(AfterFork):
    """The batches of one session of the engine.

    Args:
        transport: the engine.
        device: "cpu" or "gpu:0".

    Attributes:
        device, id, …: see `Session`.
    """

    def __init__(self, transport: Transport, device: str) -> None:
        self._recording = RecordedCommands(device)
        self._recorded = self._recording.commands  # before the rest: a session's hash is its own
        super().__init__()
        self.device = device
        self.requests = 0
        self.failures = 0
        self.graphs = known_graphs(transport)
        self._transport = transport
        self._link = LinkUse()
        self.new_id = itertools.count(1).__next__
        self._seq = itertools.count(1)
        self._lock = threading.Lock()
        self._views: dict[str, Any] = {device: self}
        self.free = self._recording.freed.append
        self._places = CommandPlaces()
        self._warnings = EngineWarnings()
        self.warnings, self.heard = self._warnings.waiting, self._warnings.heard
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
        self._unfilled = UnfilledPlaces(transport)
        direct_wanted()  # a wrong setting is told before there is a session
        self._enter(open_session(transport, [device]))
        self._queue: queue.SimpleQueue[CommandBatch | None] = queue.SimpleQueue()
        self._window: deque[CommandBatch] = deque(maxlen=MAX_SENDERS + 2 * WINDOW + 2)
        self._senders = BatchSenders(self._send_all, device, transport.connections, grows=not transport.in_process)

    def _enter(self, answer: dict[str, Any]) -> None:
        """Use the session that the engine has opened."""
        self.id: str = answer["id"]
        self._ttl = float(answer.get("ttl_s", 600))
        self._path = routes.COMMANDS.format(id=self.id)
        self._near = self._transport.near(self._path)
        self._way = SessionWay(self._transport, answer)
        self._last: CommandBatch | None = None
        self._limits = RequestLimits(answer.get("limits", {}), self._transport.address)

    def reopen(self) -> None:
        """Start a new session after the engine lost the old one; commands in flight fail.

        Ids go on, so that what is restored may have the ids that it had.
        """
        shielded(self._begin_anew, open_session(self._transport, list(self._views), self.id))

    def _begin_anew(self, answer: dict[str, Any]) -> None:
        with self._lock, self._loss_lock:
            self._way.close()
            self._enter(answer)
            lost = self._broken or TransportError("the session was begun anew")
            self._recording.take().fail(lost)
            self._seq = itertools.count(1)
            self._sealed = self._cancelled = 0
            self._unfilled.clear()
            self._places.clear()
            self._error = self._broken = None

    def become_childs(self) -> None:
        """It is the parent's: nothing of this process is sent there, and nothing is ended."""
        self._lock, self._loss_lock = threading.Lock(), threading.Lock()
        self._closed, self._broken = True, of_the_parent()
        self._recording.take().fail(self._broken)
        for batch in self._window:
            batch.fail(self._broken)

    @property
    def lost(self) -> bool:
        """True if the engine has ended this session (user code crashed, the server restarted): its arrays are gone."""
        return self._broken is not None

    @property
    def loss(self) -> str:
        """Why the engine has ended it, or did before it was begun anew; empty while it has not."""
        return self._loss

    @property
    def address(self) -> str:
        """Where its batches go: the server's URL; in a cluster that of the node, or of the gateway."""
        return self._way.address

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

    def _raise_if_ended(self) -> None:
        if self._closed or self._broken is not None:
            raise self._broken or TransportError("the session is closed: its arrays are gone")

    def raise_pending(self) -> None:
        """Raise, once, the error of a batch whose answer was not waited for."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def delivered(self, error: Exception) -> None:
        """Note that an error has been raised to the user."""
        if self._error is error:
            self._error = None

    def _seal(self) -> CommandBatch:
        """End the batch that is being recorded; it has its place in the order from here on."""
        batch = self._recording.take()
        batch.seq = self._sealed = next(self._seq)
        batch.path = self._path
        batch.trace = current_context()
        self._places.add(batch.seq, batch.places)
        self.requests += 1
        self._last = batch
        return batch

    @property
    def _is_quiet(self) -> bool:
        """Whether there is nothing to send to an engine of this process, or to wait for there."""
        last = self._last
        idle = self._near is not None and last is not None and last.ended
        return idle and not self._recorded and not self._recording.freed

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
                batch = self._recording.take()
                batch.fail(self._broken or TransportError("the session is closed: its arrays are gone"))
                return batch
            here = waited_for and self._near is not None and self._near.is_next(self._sealed + 1)
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

    # -- sending -------------------------------------------------------------------------------------------------------

    def _next(self) -> CommandBatch | None:
        """The next batch to send; an empty one when the session would expire for want of commands."""
        while True:
            try:
                return self._queue.get(timeout=LONGEST_PAUSE_S if self._unfilled else self._ttl / 3)
            except queue.Empty:
                if self._unfilled:
                    with contextlib.suppress(MXNetError):  # the next batch tells it
                        self._unfilled.fill()
                    continue
                with self._lock:
                    if self._queue.empty() and not self._recorded and not self._closed and self._broken is None:
                        self._enqueue(self._seal())

    def _send_all(self) -> None:
        while (batch := self._next()) is not None:
            batch.taken.open()
            self._send(batch)
            batch.release()
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
        try:
            if self._unfilled:
                self._unfilled.fill()
            wait = batch.waits or batch.seq % PACE == 0
            if batch.trace is None:
                reply = self._answer(batch, wait)
            else:
                with attached(batch.trace):
                    reply = self._answer(batch, wait)
            batch.ended = wait
            if reply.travel is not None:
                batch.link_s = self._link.add(reply.travel)
            batch.tensors = {}
            if sentences := reply.header.get("warnings"):
                self._warnings.hear(sentences)
            batch.settle(reply)
        except (TransportError, WireError) as error:
            self._failed(batch, error, fatal=True)
        except MXNetError as error:
            fatal = error.status in (401, 403, 404, 410, 503)
            if "command" not in error.detail and not fatal:
                self._unfilled.add(batch.path, batch.seq)
                with contextlib.suppress(MXNetError):  # the next batch tries again, and tells it
                    self._unfilled.fill()
            self._failed(batch, self._places.with_line(error, batch.seq), fatal=fatal)
        except Exception as error:
            fault = InternalError(f"internal error: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._failed(batch, fault, fatal=True)
        except BaseException:  # an interrupt of the user's own code, which runs in this thread
            self.failures += 1
            batch.fail(CancelledError(f"batch {batch.seq} was interrupted"))
            raise

    def _answer(self, batch: CommandBatch, wait: bool) -> Reply:
        """Have an engine of this process run a batch whose turn has come, or post it."""
        reply = None
        if wait and self._near is not None and not batch.about_graphs:
            reply = self._near.run(batch.seq, batch.commands, batch.tensors)
        return reply or post_batch(self._way.transport, batch, wait)

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

    def close(self, timeout: float = 10.0) -> None:
        """Send what is recorded, end the session on the engine, and stop the threads."""
        if not shielded(self._end):
            return
        self._senders.join(timeout)
        self._way.close()
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
