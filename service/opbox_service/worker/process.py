"""The worker process: hosts an engine, takes calls from the API process until that closes the connection.

    python -m opbox_service.worker.process FD

Its threads all wait on one socket and whichever is free takes the next message, so a call is handed over once, not
twice. One thread more than calls run at a time is there, so that somebody always reads: calls beyond that wait for
their turn (`turns`), and what stops a call comes through. A call whose batch must wait for another leaves its thread;
the thread that ends the other batch answers it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from opbox_ops.backend import device_name, lost
from opbox_ops.backend.numpy import load_scipy
from opbox_protocol.collector import begin_tending, tend
from opbox_protocol.errors import MXNetError, NotReadyError, QuotaError, error_from_json

from ..allocator import cap_memory, tune_allocator
from ..buffers import INLINE, Lease, Pool, map_shared, unmap
from ..carriers import OwnerQuota, RawRequest, RawResponse
from ..codec import error_response, infer_again, limits_of, recurring_request, serve
from ..engine import Engine
from ..logs import configure
from ..memory_shares import HOST
from ..models.gathered_runs import GatheredRuns
from ..models.reference import ModelReference
from ..quota import Budget
from ..routes.route import RunsOn
from ..routes.table import WORKER_ROUTES
from ..session.code_policy import CodePolicy
from ..session.moving import write_image
from ..session.session import ServerSession
from ..settings import Settings
from ..stages import Stages
from ..task import Task, running
from ..turns import Job, Turn, Turns
from . import messages
from .answer_bundle import AnswerBundle
from .progress import Progress
from .remote_checkpoints import RemoteCheckpoints
from .remote_datasets import RemoteDatasets
from .remote_graphs import RemoteGraphs

__all__ = ["main", "run"]

REPORT_S = 0.05
"""Seconds on the device that are reported with the next answer, and do not wait for the second to end."""
LISTED = 64
"""Maximum number of rows in a message, well below its size limit."""
REPORTED = 16
"""Maximum number of rows in a message with reported values."""
ANSWERS_S = 1.0
"""Seconds that calls that run have to answer, before the process ends because its device is lost."""
SWITCH_S = 0.001
"""Seconds that a thread may keep the interpreter's lock while others want it: a small call takes it a few times."""

_log = structlog.get_logger("opbox.worker")


@dataclass(frozen=True, slots=True)
class LentAnswer:
    """A buffer with an answer that the API process sends, and whose memory it counts as."""

    lease: Lease
    memory: Budget
    size: int


class WorkerProcess:
    """The worker's side of the connection.

    Args:
        progress: where it writes which command runs; None in a worker that sessions share, which takes no code.
        share: of the memory of every device, what its sessions may have.
    """

    def __init__(
        self, sock: socket.socket, settings: Settings, progress: Progress | None = None, share: float = 1.0
    ) -> None:
        self._sock = sock
        self._settings = settings
        self._progress = progress
        self._limits = limits_of(settings)
        self._checkpoints = RemoteCheckpoints(lambda message, fds: self._send(message, fds=fds))
        self._engine = Engine(
            settings,
            CodePolicy(progress, progress is not None, self._uploaded, self._move if progress is None else None),
            checkpoints=self._checkpoints if settings.keeps_checkpoints else None,
            share=share,
            datasets=RemoteDatasets(self._checkpoints, lambda message, fds: self._send(message, fds=fds)),
            graphs=None
            if settings.store_url is None
            else RemoteGraphs(self._checkpoints, lambda message, fds: self._send(message, fds=fds)),
        )
        self._requests: dict[int, memoryview] = {}
        self._answers = Pool(shared=True, limit=settings.max_buffer_bytes, keep=settings.buffer_cache_bytes)
        self._lent: dict[int, LentAnswer] = {}
        self._turns = Turns(settings.threads)
        self._bundle: AnswerBundle | None = None
        self._gathered = GatheredRuns(self._turns, self._leave_if_lost, self._answers_together)
        self._tasks: dict[int, Task] = {}
        self._sessions_sent = 0
        self._memory_sent: dict[tuple[str, str], int] = {}
        self._account_lock = threading.Lock()
        self._reading = threading.Lock()

    @property
    def sessions_bytes(self) -> int:
        """Memory that its sessions, calls and answers may take together."""
        return self._engine.ledger.whole(HOST)

    def run(self) -> None:
        """Serve until the API process closes its end."""
        begin_tending()
        threads = [
            threading.Thread(target=self._take_calls, name=f"opbox-call-{i}", daemon=True)
            for i in range(self._settings.threads + 1)
        ]
        for thread in threads:
            thread.start()
        messages.send(self._sock, messages.write({"kind": "ready", "pid": os.getpid()}))
        self._wait_for_the_end()
        self._checkpoints.close()
        for thread in threads:
            thread.join(self._settings.stop_grace_s)
        self._send_times()  # of the last second
        self._send_account()
        self._engine.close()

    def _wait_for_the_end(self) -> None:
        poll = select.poll()
        poll.register(self._sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
        ahead = self._progress is None  # what one session's code needs, it loads itself
        while not poll.poll(1_000):
            if ahead and not self._tasks:
                load_scipy()
                ahead = False
            if self._progress is not None:
                self._progress.beat()
            tend(idle=self._turns.idle)
            self._send_times()
            self._send_account()

    def _send_times(self, *, always: bool = False) -> None:
        """Report how long calls waited and ran, and which buffers are gone; with nothing new, only if `always`."""
        dropped, sessions = self._answers.sweep(), len(self._engine.sessions)
        times = self._engine.device_times.take()
        if always or dropped or times or sessions != self._sessions_sent:
            self._sessions_sent = sessions
            self._send({"kind": "drop", "segments": dropped, "sessions": sessions, "times": times})

    def _send_account(self) -> None:
        """Report the sessions that have ended, owners' memory where it has changed, and what trainings report."""
        with self._account_lock:
            self._send_reports()
            ended = [(id, reason) for id, _, reason in self._engine.sessions.take_ended()]
            memory = {(owner, device): nbytes for owner, device, nbytes in self._engine.memory()}
            changed = [(*key, n) for key, n in memory.items() if self._memory_sent.get(key, 0) != n]
            changed += [(*key, 0) for key in self._memory_sent if key not in memory]
            self._memory_sent = memory
            for start in range(0, max(len(ended), len(changed)), LISTED):
                part = slice(start, start + LISTED)
                self._send({"kind": "account", "ended": ended[part], "memory": changed[part]})

    def _send_reports(self) -> None:
        rows = [(owner, id, *report) for owner, id, report in self._engine.sessions.take_reports()]
        for start in range(0, len(rows), REPORTED):
            self._send({"kind": "reported", "rows": rows[start : start + REPORTED]})

    def _take_calls(self) -> None:
        """Take messages until the API process closes its end."""
        while self._take_message():
            pass

    def _take_message(self) -> bool:
        """Take one message and do what it asks; return False at the end of the connection.

        A function of its own, so that a thread that waits for the next message keeps nothing of the last: the memory of
        a large request is returned once nothing refers to the request (`Sessions.return_later`).
        """
        # One thread reads. A call that is quick it makes itself, and the others sleep on: woken for each message,
        # they would wait for the interpreter most of the time.
        run: Callable[[], None] | None = None
        with self._reading:
            while True:
                try:
                    message, fd = messages.receive(self._sock, wait=not self._gathered.any)
                except BlockingIOError:  # of requests that run together, all are here that can be
                    run = self._gathered.run()
                    if run is None:
                        continue
                    break
                except OSError:
                    return False
                if not message:
                    return False
                header, inline = messages.read(message)
                request = self._request(header, inline, fd) if header["kind"] == "call" else None
                if request is None or not self._call_at_once(header["id"], request):
                    break
        if run is not None:
            run()
            return True
        if request is not None:
            try:
                self._call(header, request)
            except Exception as error:
                # Code of a session's own may have used up what answers take, as the places for open files.
                self._fail(header["id"], error)
        elif header["kind"] == "adopt":
            self._adopt(header, fd)
        elif header["kind"] == "moved":
            self._engine.sessions.leave(header["session"])
            self._send_account()
            self._send({"kind": "left", "session": header["session"]})
        elif header["kind"] == "stay":
            self._stay(header["session"], error_from_json(header["status"], header["error"]))
        elif header["kind"] == "cancel":
            task = self._tasks.get(header["id"])
            if task is not None:
                task.stop(error_from_json(header["status"], header["error"]))
        elif header["kind"] == "release":
            lent = self._lent.pop(header["segment"], None)
            if lent is not None:
                lent.lease.release()
                lent.memory.give(lent.size)
        elif header["kind"] == "stored":
            self._checkpoints.answered(header, fd)
        elif header["kind"] == "times":
            with self._account_lock:
                self._send_reports()
            self._send_times(always=True)
        elif header["kind"] == "stop":
            # Not by this thread: it reads what the saving waits for.
            threading.Thread(target=self._engine.sessions.save_at_stop, name="opbox-save", daemon=True).start()
        elif header["kind"] == "drop":
            for number in header["segments"]:
                view = self._requests.pop(number, None)
                if view is not None:
                    unmap(view)
        return True

    def _fail(self, id: int, error: Exception) -> None:
        self._answer(id, error_response(error))

    def _request(self, header: dict[str, Any], inline: memoryview, fd: int | None) -> RawRequest | None:
        """The request that a message brings; None where it has been answered with an error."""
        try:
            return self._read_request(header, inline, fd)
        except Exception as error:
            self._fail(header["id"], error)
            return None

    def _read_request(self, header: dict[str, Any], inline: memoryview, fd: int | None) -> RawRequest:
        body, number = inline, header["segment"]
        if number is not None:
            if fd is not None:
                self._requests[number] = map_shared(fd)
            if number not in self._requests:
                raise NotReadyError(
                    "no more files can be opened in the session's process: close some, or make a new one"
                )
            body = self._requests[number][: header["size"]]
        route, parameters = WORKER_ROUTES.match(header["method"], header["path"])
        return RawRequest(
            route,
            parameters,
            header["path"],
            header["owner"],
            frozenset(header["scopes"]),
            header["rid"],
            body,
            header["header_length"],
            header["binary"],
            header["non_finite"],
            weight=header["weight"],
            quota=OwnerQuota(*header["quota"]) if header["quota"] is not None else None,
            model=ModelReference(*header["model"]) if header["model"] is not None else None,
            trace=header.get("trace", ""),
        )

    def _call_at_once(self, id: int, request: RawRequest) -> bool:
        """Make a call by the thread that reads, where it is quick and nobody's turn; return False for another."""
        if request.trace:
            return False
        recurring = recurring_request(request, self._engine.models)
        if recurring is None or recurring.known is None:
            return False
        form, batcher = recurring.known.form, None
        if not form.alone and recurring.model is not None:
            batcher = recurring.model.gathers
        if batcher is None and not (form.is_quick and self._turns.idle):
            return False

        def send(response: RawResponse) -> None:
            self._answer(id, response, request.owner)

        def fail(error: Exception) -> None:
            self._fail(id, error)

        try:
            self._engine.admit(request.owner, request.quota)
            if batcher is None:
                infer_again(request, recurring, send, fail, waited_for=True)
            else:
                task = self._tasks[id] = Task(self._settings.graph_seconds)
                task.weight = request.weight
                with running(task):
                    infer_again(request, recurring, send, fail, waited_for=True)
                self._gathered.add(batcher)
        except Exception as error:
            fail(error)
        finally:
            self._leave_if_lost()
        return True

    def _leave_if_lost(self) -> None:
        if lost() is not None:
            self._leave()

    def _call(self, header: dict[str, Any], request: RawRequest) -> None:
        route, parameters = request.route, request.parameters

        def send(response: RawResponse) -> None:
            if route.method == "DELETE" or (
                request.quota is not None and (request.quota.memory_bytes or request.quota.host_bytes)
            ):
                self._send_account()  # before the answer, so that who has it may count on it
            self._answer(header["id"], response, request.owner)

        task = self._tasks[header["id"]] = Task(self._settings.graph_seconds)
        task.weight = request.weight
        if request.trace and self._progress is None:  # what a process for code says of itself is not believed
            task.stages = Stages()

        def work(turn: Turn) -> None:
            task.turn = turn
            if task.stages is not None:
                task.stages.begin()
            try:
                with running(task):
                    rest = serve(self._engine, request, self._limits, send, task)
                    if rest is not None:
                        rest()
            except Exception as error:
                self._fail(header["id"], error)
            finally:
                self._leave_if_lost()
                task.turn = None  # which knows of this function: what refers to itself waits for the collector

        session = parameters.get("id", "") if route.runs_on is RunsOn.SESSION_WORKER else ""
        if route.method != "POST":
            work(Turn(self._turns, Job(request.owner, session, work)))  # it takes no time, and may end what does
            return
        job = Job(request.owner, session, work, header["weight"], header["interactive"])
        turn = self._turns.offer(job)
        if turn is not None:
            self._turns.run(turn, job)

    # -- sessions that move to a process of their own (`session.moving`) -----------------------------------------

    def _move(self, session: ServerSession) -> None:
        """Send the image of a paused session, or continue it without its code."""
        try:
            fd = write_image(*session.image())
        except Exception as error:
            if not isinstance(error, (MXNetError, OSError)):
                _log.error("a session cannot be moved", session=session.id, exc_info=True)
            session.stay(
                error
                if isinstance(error, MXNetError)
                else NotReadyError(f"the session's own process: its arrays cannot be sent there ({error}): try later")
            )
            return
        where = {"owner": session.owner, "device": session.device, "bytes": session.budget.used}
        self._send({"kind": "move", "session": session.id, **where}, fds=(fd,))
        os.close(fd)

    def _stay(self, id: str, error: MXNetError) -> None:
        """Continue a session that no process could take over, in its turn."""
        session = self._engine.sessions.moving(id)
        if session is None:
            return
        task = Task(self._settings.graph_seconds)

        def work(turn: Turn) -> None:
            task.turn = turn
            with running(task):
                session.stay(error)
            task.turn = None

        job = Job(session.owner, id, work)
        turn = self._turns.offer(job)
        if turn is not None:
            self._turns.run(turn, job)

    def _adopt(self, header: dict[str, Any], fd: int | None) -> None:
        """Continue a session of another process, and run its waiting batches."""
        assert fd is not None
        quota = OwnerQuota(*header["quota"]) if header["quota"] is not None else None
        try:
            session = self._engine.adopt(header["owner"], quota, fd)
        except Exception as error:
            self._fail(header["id"], error)
            return
        finally:
            os.close(fd)
        self._send_account()
        self._answer(header["id"], RawResponse(201, [json.dumps(session.opened()).encode()]), header["owner"])
        session.drain()

    def _uploaded(self, owner: str, session: str, rows: list[tuple[str, str, str]], more: int) -> None:
        self._send({"kind": "uploaded", "owner": owner, "session": session, "rows": rows, "more": more})

    def _leave(self, seconds: float = ANSWERS_S) -> None:
        """End the process: what it has on its device cannot be reached any more.

        Another call may be the one that lost the device, and about to say why.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(task.turn is not None for task in list(self._tasks.values())):
            time.sleep(0.001)
        _log.error("the device is lost; the worker ends", reason=lost(), sessions=len(self._engine.sessions))
        os._exit(messages.DEVICE_LOST)

    def _answer(self, id: int, response: RawResponse, owner: str = "") -> None:
        """Send an answer; then the call is over."""
        self._send_answer(id, response, owner)
        self._tasks.pop(id, None)

    def _send_answer(self, id: int, response: RawResponse, owner: str) -> None:
        """Send an answer; a large one is counted as its owner's until the API process gives its buffer back."""
        size = response.size
        self._sessions_sent = len(self._engine.sessions)
        message = {
            "kind": "answer",
            "id": id,
            "status": response.status,
            "header_length": response.header_length,
            "commands": response.commands,
            "size": size,
            "segment": None,
            "sessions": self._sessions_sent,
            "queue": response.queue,
        }
        if response.problem is not None:
            message["problem"] = response.problem
        if response.stages:
            message["stages"] = response.stages
        # A process for code is asked before it is ended, and what it says of itself is counted by the second.
        if self._progress is None and (times := self._engine.device_times.take(REPORT_S)):
            message["times"] = times
        if size <= INLINE:
            body, bundle = b"".join(response.parts), self._bundle
            if bundle is None or not bundle.take(message, body):
                self._send(message, body)
            return
        memory = self._engine.ledger.of(owner, HOST)
        try:
            memory.take(size)
        except QuotaError as error:
            self._fail(id, error)
            return
        try:
            lease = self._answers.lease(size)
        except NotReadyError as error:
            memory.give(size)
            self._fail(id, error)
            return
        response.write_to(lease.view)
        segment = lease.segment
        message["segment"] = segment.number
        self._lent[segment.number] = LentAnswer(lease, memory, size)
        fds = () if segment.sent or segment.fd is None else (segment.fd,)
        segment.sent = True
        self._send(message, fds=fds)

    @contextlib.contextmanager
    def _answers_together(self) -> Iterator[None]:
        """The block's answers that this thread gives leave in one message; a process for code sends each by itself."""
        if self._progress is not None:
            yield
            return
        bundle = self._bundle = AnswerBundle(self._send)
        try:
            yield
        finally:
            self._bundle = None
            bundle.send()

    def _send(self, message: dict[str, Any], inline: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        try:
            messages.send(self._sock, messages.write(message, inline), fds)
        except OSError:
            # The API process is gone, and with it whoever waited.
            _log.debug("the answer has nobody to go to")


def main(argv: list[str]) -> None:
    """Run a worker over the socket whose descriptor is argv[0]; its first message has the settings."""
    sock = socket.socket(fileno=int(argv[0]))
    message, _ = messages.receive(sock)
    if message:
        header, text = messages.read(message)
        run(sock, json.loads(bytes(text)), share=header["share"])


def run(sock: socket.socket, values: dict[str, Any], progress: Progress | None = None, share: float = 1.0) -> None:
    """Serve over a socket, with these settings, until the other side closes it; then end the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tune_allocator()
    sys.setswitchinterval(SWITCH_S)
    settings = Settings.model_validate(values)
    configure(settings)
    try:
        process = WorkerProcess(sock, settings, progress, share)
    except Exception as error:
        reason = str(error)
        if not isinstance(error, MXNetError):
            _log.error("the worker could not start", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
        messages.send(sock, messages.write({"kind": "failed", "reason": reason[:2000]}))
        raise SystemExit(1) from None
    if progress is None and all(device_name(name) == HOST for name in (settings.device, *settings.devices)):
        cap_memory(process.sessions_bytes)
    process.run()
    # Threads that are still busy past the grace period end here.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
