"""One worker process as the API process sees it: spawned, called, watched, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from opbox_protocol.errors import DeadlineError, MXNetError, NotReadyError, WorkerDiedError, error_to_json

from ..accounting.books import Books
from ..buffers import Lease, Pool, map_shared, unmap
from ..carriers import RawRequest, RawResponse
from ..device_time import DeviceTimes
from ..memory_shares import has_gpu
from ..sealed_files import Descriptor
from ..session.moving import MOVED, MovedError
from ..settings import SECRETS, Settings
from ..stores import NO_STORES, Stores
from . import messages
from .allowance import Allowance
from .channel import Channel
from .incoming import MAX_COUNT
from .life_signs import LifeSigns
from .processes import resident_bytes
from .reports import Reports, check_problem
from .spawning import environment, reason_of
from .store_requests import StoreRequests
from .template import ForkedProcess

__all__ = ["Worker"]

START_S = 120.0
"""Seconds that a worker may take to load the operators."""
LAST_S = 2.0
"""Seconds between the end of a connection and that of its process, which gives its memory back meanwhile."""
DROPS_S = 0.2
"""Seconds between two messages that nobody asked for, at the least and on average; one comes in a second or fewer."""
MAX_DROPS = 1000
"""Maximum burst of messages after the API process was blocked."""

_log = structlog.get_logger("opbox.workers")


class Worker:
    """A process, its connection and its shared buffers.

    Buffers are its own: what one worker can read, no other can.

    Attributes:
        settings: its own.
        reason: why the process ended, in words.
        whose: the owner and the device that its time is counted for; None where sessions share it, which tells.
        only_session: the id of its session, if it can have no other.
        silent_s: seconds without a sign of life, when it was looked at last; 0 while it may be well.

    Args:
        settings: passed on, without the tokens.
        on_end: called once when the process has ended, asked to or not.
        device_times: counts how long its calls wait and run.
        books: record what its sessions have, and what code they are sent.
        stores: where its sessions' checkpoints and datasets are.
        on_session_end: called with a session's id and why it ended.
        on_move: called with what it says of a session that is to move (`messages`), and the session's image.
        share: of the memory of every device, what its sessions may have.

    Attributes:
        user: the user id that is the process's own; 0 where it has the server's.
    """

    def __init__(
        self,
        settings: Settings,
        on_end: Callable[[Worker], None],
        device_times: DeviceTimes,
        books: Books,
        stores: Stores = NO_STORES,
        on_session_end: Callable[[str, str], None] = lambda session, reason: None,
        share: float = 1.0,
        on_move: Callable[[Worker, dict[str, Any], Descriptor], None] | None = None,
    ) -> None:
        self.settings = settings
        self._on_move = on_move
        self.share = share
        self.user = 0
        self._books = books
        self._reports = Reports(self, books, device_times)
        self._on_session_end = on_session_end
        self._requests = self._store_requests(stores)
        self._on_end = on_end
        self._device_times = device_times
        self.whose: tuple[str, str] | None = None
        self.only_session: str | None = None
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(shared=True, limit=settings.max_buffer_bytes, keep=settings.buffer_cache_bytes)
        self._answers: dict[int, memoryview] = {}
        self._pending: dict[int, tuple[asyncio.Future[RawResponse], RawRequest, asyncio.TimerHandle]] = {}
        self._last = 0
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._killed = False
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._channel: Channel | None = None
        self._pidfd: int | None = None
        self._reason = ""
        self._lost = ""
        self._signs = LifeSigns()
        self.silent_s = 0.0
        self.reason = ""
        self._drops = Allowance(MAX_DROPS, 1 / DROPS_S, 1.0)
        self.sessions = 0
        self.ended = False
        self.stopping = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def ready(self) -> bool:
        """True if the worker accepts calls."""
        return self._started.done() and not self.ended and not self.stopping

    @property
    def calls(self) -> int:
        """The number of calls that were made to it."""
        return self._last

    def most_bytes(self, device: str) -> int:
        """Maximum bytes of a device that its sessions can have."""
        return MAX_COUNT

    @property
    def busy(self) -> bool:
        """True if calls are under way, or bodies of calls to be are being received."""
        return bool(self._pending or self._pool.lent_bytes)

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Spawn the process and wait until its engine is up; WorkerDiedError when it ends before that."""
        try:
            await self._connect()
        except OSError as error:
            self._give_up(error)
            raise WorkerDiedError(f"the worker process {self.reason}: try again later") from None
        settings = self.settings.model_dump(mode="json", exclude={*SECRETS, "token_file", "tokens_file"})
        self._send({"kind": "settings", **self._further_settings()}, json.dumps(settings).encode())
        limit_s = START_S + (self.settings.gpu_selfcheck_s if has_gpu(self.settings) else 0)
        try:
            await asyncio.wait_for(asyncio.shield(self._started), limit_s)
        except TimeoutError:
            self.kill()
            raise WorkerDiedError(f"the worker process did not start within {limit_s:g} s") from None

    async def _connect(self) -> None:
        """Spawn the process, and read what it sends; OSError when the system has no room."""
        self._process = await self._spawn()
        assert self._channel is not None
        self._watch()
        self._channel.read()
        if self.stopping:
            self._channel.finish()
        if self._killed:
            self.kill()

    def _open_channel(self) -> socket.socket:
        """Open a connection for a process that is to be spawned, in place of any before; return the process's end."""
        if self._channel is not None:
            self._channel.close()
        self._channel, theirs = Channel.pair(self._take, self._refuse, self._disconnected)
        return theirs

    def _give_up(self, error: OSError) -> None:
        """End it before it has begun: there is no process, or none that can be watched."""
        self.ended = True
        self.reason = f"could not be started ({error})"
        if self._process is not None:
            self._process.kill()
            if isinstance(self._process, ForkedProcess):
                self._process.reap(lambda code: None)
            else:
                self._process.wait()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._channel is not None:
            self._channel.close()
        self._close()
        self._pool.close()
        self._exited.set_result(None)
        self._on_end(self)

    def _close(self) -> None:
        """Release further resources shared with the process."""

    async def _spawn(self) -> subprocess.Popen[bytes] | ForkedProcess:
        """Spawn the process, which gets an end of a connection."""
        with self._open_channel() as theirs:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "opbox_service.worker.process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment(self.settings),
            )

    def _further_settings(self) -> dict[str, Any]:
        """The arguments that the process gets beside the settings."""
        return {"share": self.share}

    def _verdict(self, code: int) -> MXNetError:
        """Return the error for calls that were running when the process ended with `code`."""
        return WorkerDiedError(f"the worker process that ran this call ended ({self._why(code)}): try again")

    def _why(self, code: int) -> str:
        """Why the process ended with the status `code`, in words."""
        return self._lost or reason_of(code)

    async def stop(self, grace_s: float) -> None:
        """Let the process finish accepted work, then stop it; kill it after `grace_s` seconds."""
        self.stopping = True
        until = self._loop.time() + grace_s + 1
        if self.ended:
            return
        if self._channel is not None:
            self._channel.finish()
        try:
            await asyncio.wait_for(asyncio.shield(self._exited), grace_s + 1)
        except TimeoutError:
            self.kill()
            await self._exited
        await self._requests.finish(until - self._loop.time())

    def announce_stop(self) -> None:
        """Save the sessions that asked for checkpoints, before a stop."""
        if self.ready:
            self._send({"kind": "stop"})

    def kill(self) -> None:
        """Kill the process; one that is just being spawned, as soon as it is there."""
        self._killed = True
        if self._process is not None and not self.ended:
            self._process.send_signal(signal.SIGKILL)

    def watch(self) -> None:
        """End the process if it has shown no sign of life for too long: it is stopped or hangs. Called each second."""
        if not self.ready or self._lost:
            return
        self.silent_s, limit = self._signs.silent_s(self.pid), self.settings.worker_silent_s
        if self.silent_s >= limit:
            self._lost = f"it did not answer for {limit:g} s: it was stopped or hung"
            _log.error("a worker process does not answer; ending it", pid=self.pid, silent_s=round(self.silent_s, 1))
            self.kill()

    def _watch(self) -> None:
        """Watch for the process's end itself: a process that it forked may keep the connection open."""
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._end)

    def _end(self) -> None:
        if self.ended or self._process is None:
            return
        self.ended = True
        self.sessions, self.silent_s = 0, 0.0
        assert self._channel is not None
        self._channel.read_rest()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._channel.close()
        if self._pidfd is None:
            # The connection ended first: the process may be a moment behind.
            self._process.kill()
        if isinstance(self._process, ForkedProcess):
            self._process.reap(self._take_status)
        else:
            self._take_status(self._process.wait())

    def _take_status(self, code: int) -> None:
        """The process has ended with this status."""
        self.reason = f"could not start: {self._reason}" if self._reason else self._why(code)
        error = self._verdict(code)
        pending, self._pending = self._pending, {}
        for answered, request, timer in pending.values():
            timer.cancel()
            request.release()
            if not answered.done():
                answered.set_exception(error)
        if not self._started.done():
            reason = self._reason or f"the worker process ended at its start ({reason_of(code)})"
            self._started.set_exception(WorkerDiedError(reason))
        self._forget(list(self._answers))
        self._pool.close()
        self._books.forget(self)
        self._exited.set_result(None)
        self._on_end(self)

    # -- calls --------------------------------------------------------------------------------------------------

    def lease(self, nbytes: int) -> Lease:
        """A shared buffer for a body."""
        return self._pool.lease(nbytes)

    def call(
        self, request: RawRequest, deadline_s: float, kind: str = "call", image: int | None = None
    ) -> asyncio.Future[RawResponse]:
        """Make a call; the future has its answer. MovedError: it is to be made again, where the session is now.

        Args:
            request: its body is released with the answer, unless it is to be made again.
            deadline_s: seconds that the answer may take.
            kind: "call", or "adopt" with the `image` of a session.
            image: a descriptor.
        """
        answered: asyncio.Future[RawResponse] = self._loop.create_future()
        if not self.ready:
            request.release()
            answered.set_exception(NotReadyError("the worker is starting or stopping: try again in a moment"))
            return answered
        self._last += 1
        segment: int | None = None
        fds: tuple[int, ...] = () if image is None else (image,)
        inline: bytes | memoryview = b""
        if isinstance(request.body, Lease):
            lent = request.body.segment
            segment = lent.number
            if not lent.sent and lent.fd is not None:
                fds = (lent.fd,)
                lent.sent = True
        else:
            inline = request.body
        message = messages.call(self._last, request, segment, kind)
        timer = self._loop.call_later(deadline_s, _too_late, answered, request, deadline_s)
        self._pending[self._last] = answered, request, timer
        request.cancel = partial(self._cancel, self._last)
        self._send(message, inline, fds)
        return answered

    def _cancel(self, id: int, error: MXNetError) -> None:
        """Stop a running call: it is answered with `error` at its next step."""
        if id in self._pending and not self.ended:
            status, header = error_to_json(error)
            self._send({"kind": "cancel", "id": id, "status": status, "error": header})

    def sweep(self) -> None:
        """Drop buffers that have long been idle, on both sides."""
        dropped = self._pool.sweep()
        if dropped and self.ready:
            self._send({"kind": "drop", "segments": dropped})

    def memory(self) -> tuple[int, int]:
        """Resident bytes, and bytes of buffers lent."""
        return resident_bytes(self.pid) if not self.ended else 0, self._pool.lent_bytes

    # -- the connection -----------------------------------------------------------------------------------------

    def _send(
        self,
        message: dict[str, Any],
        inline: bytes | memoryview = b"",
        fds: tuple[int, ...] = (),
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        assert self._channel is not None
        self._channel.send(messages.write(message, inline), fds, sent)

    def _refuse(self, error: Exception) -> None:
        """End a process that sent a malformed message."""
        _log.error("a worker sent what is no message; ending it", pid=self.pid, exc_info=error)
        self.kill()

    def _disconnected(self) -> None:
        """The connection has ended; so will the process, if it has not, and `_end` must not wait for it."""
        if self._pidfd is None:
            self._end()
            return
        assert self._channel is not None
        self._channel.stop_reading()
        # When it crashed, how it did is told by its status, in a moment.
        self._loop.call_later(LAST_S, self.kill)

    def _take(self, message: bytes, fd: int | None) -> None:
        self._signs.heard()
        with Descriptor(fd) as descriptor:
            header, inline = self._read(message)
            kind = header["kind"]
            if kind == "answer":
                self._take_answer(header, inline, descriptor)
            elif kind == "answers":
                at = 0
                for answer in header["answers"]:
                    end = at + answer["size"]
                    self._take_answer(answer, inline[at:end], descriptor)
                    at = end
            elif kind in ("save", "load", "rows", "graph"):
                self._requests.take(header, descriptor, self._owner_of(header))
            elif kind in ("move", "left"):
                if self._on_move is None:
                    raise ValueError(f"unexpected message {kind!r}")
                self._on_move(self, header, descriptor)
            elif kind == "ready" and not self._started.done():
                self._started.set_result(None)
            elif kind == "failed" and not self._started.done():
                self._reason = header["reason"]
            elif kind == "drop" and (self.stopping or self._drops.take()):
                self.sessions = header["sessions"]
                self._forget(header["segments"])
                self._reports.take_times(header["times"])
                self._on_times()
            elif kind == "account":
                self._reports.take_memory(header["memory"])
                if self.whose is None:
                    for id, reason in header["ended"]:
                        self._on_session_end(id, reason)
            elif kind == "reported":
                self._reports.take_values(header["rows"])
            elif kind == "uploaded":
                self._reports.take_uploads(header)
            else:
                raise ValueError(f"unexpected message {kind!r}")

    def _read(self, message: bytes) -> tuple[dict[str, Any], memoryview]:
        """A message's object, and the bytes behind it; ValueError when it is none."""
        return messages.read(message)

    def _owner_of(self, header: dict[str, Any]) -> str:
        """The owner for whom a message asks."""
        owner: str = header["owner"]
        return owner

    def _store_requests(self, stores: Stores) -> StoreRequests:
        return StoreRequests(stores, self._stored)

    def _on_times(self) -> None:
        """Count the times of calls that the process reports."""

    def _forget(self, segments: list[int]) -> None:
        """Unmap buffers of answers that the process has dropped."""
        for number in segments:
            view = self._answers.pop(number, None)
            if view is not None:
                unmap(view)

    def _take_answer(self, header: dict[str, Any], inline: memoryview, descriptor: Descriptor) -> None:
        id, number, header_length = header["id"], header["segment"], header["header_length"]
        if id not in self._pending:
            raise ValueError(f"expected an answer to a call, got one to none ({id})")
        answered, request, timer = self._pending[id]
        if number is None:
            body = inline
        else:
            if descriptor:
                self._map(number, descriptor)
            if number not in self._answers or header["size"] > len(self._answers[number]) or len(inline):
                raise ValueError(f"expected {header['size']} bytes in a shared buffer, got fewer")
            body = self._answers[number][: header["size"]]
        if header_length is not None and header_length > len(body):
            raise ValueError(f"expected {header_length} bytes of JSON in an answer, got {len(body)}")
        response = RawResponse(header["status"], [body], header_length, header["commands"])
        response.stages = header.get("stages", ())
        if header["queue"] is not None:
            before, wait_s = header["queue"]
            response.queue = before, float(wait_s)
        if header.get("problem") is not None:
            response.problem = check_problem(header["problem"])
        self._check_answer(request, response)
        if number is not None:
            response.release = partial(self._give_back, number)
        self.sessions = header["sessions"]
        if self.whose is None and "times" in header:
            self._reports.take_times(header["times"])
        del self._pending[id]
        timer.cancel()
        self._hand_over(answered, request, response)

    def _check_answer(self, request: RawRequest, response: RawResponse) -> None:
        """Raise ValueError for an answer that the route has not."""

    def _map(self, number: int, descriptor: Descriptor) -> None:
        """Map a new buffer of answers; ValueError when it is none, or one too many."""
        if number in self._answers:
            raise ValueError(f"expected a new shared buffer, got number {number} again")
        self._answers[number] = map_shared(descriptor.take())

    def _hand_over(self, answered: asyncio.Future[RawResponse], request: RawRequest, response: RawResponse) -> None:
        """Give an answer to who waits for it."""
        # A process cannot choose what browsers take its answer for: the route says it.
        if request.route.answer is None and response.status == request.route.status:
            response.content_type = request.route.media_type
        if response.status == MOVED and self._on_move is not None:
            seq = json.loads(bytes(response.body))["detail"]["seq"]
            if not answered.done():
                response.release()
                answered.set_exception(MovedError(seq))
                return
            self._on_move(self, {"kind": "void", "request": request, "seq": seq}, Descriptor(None))
        request.release()
        if answered.done():
            if response.problem is not None:  # nobody waits for it any more, so that no other line has it
                _log.error("internal error", request_id=request.request_id, exception=response.problem)
            response.release()
        else:
            answered.set_result(response)

    def session_moved(self, id: str) -> None:
        """Tell that another process has a session; the answer is `left`."""
        if self.ready:
            self._send({"kind": "moved", "session": id})

    def session_stays(self, id: str, error: MXNetError) -> None:
        """Tell that no process could take a session over."""
        if self.ready:
            status, header = error_to_json(error)
            self._send({"kind": "stay", "session": id, "status": status, "error": header})

    def _stored(self, answer: dict[str, Any], fds: tuple[int, ...], done: Callable[[], None]) -> None:
        """Send the answer to a request for stored files, then close its descriptors."""

        def sent() -> None:
            for fd in fds:
                os.close(fd)
            done()

        if self.ended or self.stopping:
            sent()
        else:
            self._send({"kind": "stored", **answer}, fds=fds, sent=sent)

    def _give_back(self, number: int) -> None:
        if not self.ended:
            self._send({"kind": "release", "segment": number})


def _too_late(answered: asyncio.Future[RawResponse], request: RawRequest, deadline_s: float) -> None:
    if not answered.done():
        error = DeadlineError(f"{request}: expected an answer within {deadline_s:g} s, got none")
        answered.set_exception(error)
        request.cancel(error)
