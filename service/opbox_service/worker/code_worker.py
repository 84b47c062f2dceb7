"""A worker process for one session that may bring code: confined, watched, and cleaned up after when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from opbox_ops.backend.kernel_cache import SHARED as SHARED_KERNELS
from opbox_ops.backend.kernel_cache import kernel_folders
from opbox_ops.cpu.onednn import library as onednn
from opbox_ops.cpu.runtime import c_compiler
from opbox_protocol.errors import DeadlineError, GoneError, MXNetError, UserCodeError, WorkerDiedError

from ..accounting.books import Books
from ..carriers import RawRequest, RawResponse
from ..device_time import DeviceTimes
from ..memory_shares import HOST, has_gpu
from ..models.reference import ModelReference
from ..sealed_files import Descriptor
from ..selfcheck.record import copy_verdicts
from ..settings import Settings
from ..stores import NO_STORES, Stores
from . import incoming
from .allowance import Allowance
from .code_answers import check_answer
from .code_process import homes
from .confine import Bounds, own_packages
from .orphans import User, end_all_of
from .output import Output
from .processes import Usage
from .progress import Progress, Seen
from .scratch_dirs import make_dir, remove
from .spawning import environment
from .stacks import own_frames
from .store_requests import OF_CODE, StoreRequests
from .template import ForkedProcess, Template
from .worker import Worker

__all__ = ["CodeWorker", "code_environment", "mps_folders"]

PASSED = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PASSED_TO_OPERATORS = tuple(
    f"OPBOX_{name}"
    for name in (
        *("ALLOW_NONDETERMINISTIC", "ALLOW_TF32", "C_KERNELS", "COMPUTE_LEVEL", "CUBINS", "CUDNN", "CUDNN_TUNE"),
        *("DISABLE", "UNWRITTEN"),
    )
)
"""Variables that change how operators compute; code processes get them, to compute as workers do."""
PASSED_BEGINNINGS = ("LC_", "CUDA_", "NVIDIA_", "CUPY_", "MKL_", "OMP_", "OPENBLAS_")
"""Prefixes of harmless environment variables that a code process inherits."""
TRACE_BYTES = 1 << 16
LATE_S, SILENT_S = 2.0, 5.0
"""Seconds without a check before the supervisor counts as late; seconds of silence a process is allowed."""
WORKING = 0.1
"""Share of a core from which on a process counts as busy."""
REPORTING = ("account", "reported", "uploaded")
"""Kinds of messages that nobody asks for; of these come a few in a second, and a few with each call."""
MAX_REPORTS, REPORTS_PER_S, REPORTS_OF_A_CALL = 1000, 10, 6
MAX_BUFFERS = 4096
"""Maximum number of shared buffers with its answers."""
FURTHER_REQUESTS = 8
REASON, FRAME = 200, 200
"""Maximum number of characters of what was wrong with a message, and of a name in a stack."""
LAST_WORDS_S, LONGEST_LAST_WORDS_S = 0.05, 1.0
"""Seconds to wait for a process's stack or times before killing it: usual, and maximum on a busy machine."""

_log = structlog.get_logger("opbox.code")


class CodeWorker(Worker):
    """The supervisor of one code process.

    Args:
        settings: of the server.
        on_end: called when it has ended.
        user: whom it becomes; None to stay the server's.
        books: record what its session has, and what code it is sent.
        stores: where its session's checkpoints and datasets are.
        template: forks its process; None: it is started.

    Attributes:
        session: the id of its session, once it has one.
        model: the model that it has, in a session's place.
        ttl_s: of that session.
        cause: why it was ended, in a word, for the metrics.
        epitaph: why, in a sentence, for its owner.
    """

    def __init__(
        self,
        settings: Settings,
        on_end: Callable[[Worker], None],
        device_times: DeviceTimes,
        user: User | None,
        books: Books,
        stores: Stores = NO_STORES,
        template: Template | None = None,
    ) -> None:
        super().__init__(settings, on_end, device_times, books, stores)
        self._template = template
        self._user = user
        self.user = user.id if user is not None else 0
        self.session: str | None = None
        self.model: ModelReference | None = None
        self.ttl_s = settings.max_ttl_s
        self.cause = ""
        self.epitaph = ""
        self.folder = make_dir(self.user)
        self._page = Progress()
        self._trace = _trace()
        self._output = Output(self._printed)
        self._seen = Seen()
        self._beats = 0
        self._since = self._looked = time.monotonic()
        self._cpu_before: float | None = None
        self._judged = (time.monotonic(), 0.0)
        self._working = False
        self._code = False
        self._error: MXNetError | None = None
        self._starting: asyncio.Task[None]
        self._used = time.monotonic()
        self._cut = False
        self._inodes: dict[int, tuple[int, int]] = {}
        self._unasked = Allowance(MAX_REPORTS, REPORTS_PER_S)
        self._times_came = asyncio.Event()

    async def _spawn(self) -> subprocess.Popen[bytes] | ForkedProcess:
        process = await self._fork() or self._start()
        self._output.started()
        return process

    async def _fork(self) -> ForkedProcess | None:
        """Return a process that the template has forked; None where there is none to be had."""
        if self._template is None or self._template.ended:
            return None
        with self._open_channel() as theirs:
            fds = (theirs.fileno(), self._page.fd, self._trace, self._output.fd)
            try:
                return await self._template.fork(self.folder, fds)
            except (MXNetError, OSError, TimeoutError) as error:
                _log.warning("a process for code is started, not forked, which takes longer", reason=str(error))
                return None

    def _start(self) -> subprocess.Popen[bytes]:
        # Over a connection of its own: a template that ended may have forked a process first, which still reads the
        # other one and would take the settings.
        with self._open_channel() as theirs:
            fds = [theirs.fileno(), self._page.fd, self._trace]
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "opbox_service.worker.code_process", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=self._output.fd,
                stderr=self._output.fd,
                pass_fds=fds,
                start_new_session=True,
                env={**code_environment(self.settings), **homes(self.folder)},
                cwd=self.folder,
            )

    def _printed(self, line: str) -> None:
        _log.info("printed", session=self.session, pid=self.pid, text=line)

    def _further_settings(self) -> dict[str, Any]:
        settings = self.settings
        gpu = has_gpu(settings)
        kernels, library = c_compiler.share_folder(), onednn.file()
        further = {
            "kernels": None if kernels is None else str(kernels),
            "maker": os.geteuid(),
            "onednn": None if library is None else str(library.absolute()),
        }
        bounds = Bounds(
            user=self.user,
            folder=self.folder,
            read=(
                *map(str, own_packages()),
                *map(str, settings.code_reads),
                *(str(path) for path in (kernels, library) if path is not None),
                *(map(str, (*kernel_folders(), *_named_files())) if gpu else ()),
                *(str(path.absolute().parent) for path in settings.ops),
            ),
            write=tuple(map(str, mps_folders())) if gpu else (),
            memory=settings.code_memory_bytes,
            open_files=settings.code_open_files,
            file_bytes=settings.code_file_bytes,
            tasks=settings.code_tasks + settings.threads + 2 * (os.cpu_count() or 1) + 4,
            gpu=gpu,
            network=settings.code_network,
            seccomp=settings.code_seccomp,
        )
        return {"bounds": asdict(bounds), **further}

    def begin(self) -> None:
        """Start the process; `up` waits until it is ready."""
        self._starting = asyncio.create_task(self.start())
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def up(self) -> None:
        """Wait until it takes calls; MXNetError when it does not come to that."""
        await asyncio.shield(self._starting)

    @property
    def lost_template(self) -> bool:
        """True if what forks its process, or was to fork it, has ended."""
        return self._template is not None and self._template.ended

    async def gone(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._exited)

    @property
    def expired(self) -> bool:
        """True if its session has ended of itself, or would have, could it."""
        return self.session is not None and not self.ended and (not self.sessions or self.idle_s() > self.ttl_s + 30)

    # -- watching -----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """End it if the command that it is at has taken too long, or nothing in it gets a turn. Called now and then.

        Before there is code, a call has no such limit, and the process is judged as one that sessions share.
        """
        if not self.watched:
            return
        now, seen = time.monotonic(), self._page.read()
        self._code = self._code or seen.code
        if not self._code:
            if seen.beats != self._beats:
                self._signs.heard()
            super().watch()
        self._beats = seen.beats
        if seen.commands != self._seen.commands:
            self._cpu_before = None
        if now - self._looked > LATE_S:  # the machine, or the server, was held up: so was this
            self._since += now - self._looked
        self._looked = now
        # A command is not done because threads have their turn beside it.
        if (seen.commands, seen.running) != (self._seen.commands, self._seen.running) or (
            not seen.running and seen.beats != self._seen.beats
        ):
            self._seen, self._since = seen, now
        most = self.settings.code_deadline_s
        if self._code and seen.running and now - self._since > most:
            self._condemn("deadline", DeadlineError, f"took longer than {most:g} s for one command")
        elif self._code and now - self._since > max(most, SILENT_S):
            self._condemn("deadline", DeadlineError, f"let nothing else run for {max(most, SILENT_S):g} s")

    def judge(self, usage: Usage, files: tuple[int, int]) -> None:
        """End it if it uses too much: memory, processor time, bytes and number of files."""
        if not self.watched:
            return
        limits = self.settings
        (before, cpu), self._judged = self._judged, (time.monotonic(), usage.cpu)
        self._working = usage.cpu - cpu > WORKING * (self._judged[0] - before)
        if self._cpu_before is None or usage.cpu < self._cpu_before:
            self._cpu_before = usage.cpu
        for cause, kind, what, most, got in (
            ("memory", UserCodeError, "held more than {} bytes of memory", limits.code_memory_bytes, usage.memory),
            (
                "disk",
                UserCodeError,
                "held more than {} bytes of files",
                limits.code_disk_bytes,
                usage.unlinked + files[0],
            ),
            (
                "disk",
                UserCodeError,
                "made more than {} files, or folders too deep to count",
                limits.code_files,
                files[1],
            ),
            (
                "cpu",
                DeadlineError,
                "used more than {:g} processor seconds for one command, and what that left running",
                limits.code_cpu_s,
                usage.cpu - self._cpu_before,
            ),
        ):
            if got > most:
                self._condemn(cause, kind, what.format(most))
                return

    def end_for_others(self, most: int) -> None:
        """End it because it has the most, and all such processes more than they may have together."""
        what = f"held the most memory where all sessions with code held more than {most} bytes together"
        self._condemn("memory", UserCodeError, what)

    @property
    def busy(self) -> bool:
        """True if calls are under way, or what code has left running takes a processor's time."""
        return self._working or super().busy

    @property
    def watched(self) -> bool:
        """True if it has a process that could do harm, and has not been condemned."""
        return not self.ended and self.pid > 0 and self._error is None

    async def ask_times(self) -> None:
        """Ask for the times of calls since its last report, and wait the moment that an honest process takes."""
        if not self.ready:
            return
        self._times_came.clear()
        self._drops.add(1)
        self._send({"kind": "times"})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._times_came.wait(), LAST_WORDS_S)

    def _on_times(self) -> None:
        self._times_came.set()

    def retire(self, epitaph: str, cause: str = "") -> None:
        """End the process, for a reason that is not its owner's fault."""
        if self._error is None:
            self.cause, self.epitaph, self._error = cause, epitaph, GoneError(epitaph)
        self.kill()

    def _condemn(self, cause: str, kind: type[MXNetError], what: str) -> None:
        if self._error is not None:
            return
        self.cause, self._error = cause, kind(what)
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
        self._loop.call_later(LAST_WORDS_S, self._end_with_a_trace, time.monotonic() + LONGEST_LAST_WORDS_S, b"")

    def _end_with_a_trace(self, latest: float, before: bytes) -> None:
        """End the process once its stack is written, and no longer than at the look before; or at the latest time."""
        if self.ended:
            return
        trace = os.pread(self._trace, TRACE_BYTES, 0).rstrip(b"\0")
        if (trace and trace == before) or time.monotonic() > latest:
            self.kill()
        else:
            self._loop.call_later(LAST_WORDS_S, self._end_with_a_trace, latest, trace)

    def call(
        self, request: RawRequest, deadline_s: float, kind: str = "call", image: int | None = None
    ) -> asyncio.Future[RawResponse]:
        self._used = time.monotonic()
        if self.session is None and has_gpu(self.settings):
            copy_verdicts(Path(self.folder))
        self._unasked.add(REPORTS_OF_A_CALL)
        return super().call(request, deadline_s, kind, image)

    def idle_s(self) -> float:
        """Return the seconds since the process was last busy, as far as the API process can tell."""
        return 0.0 if self._pending or self._page.read().running else time.monotonic() - self._used

    # -- what it sends: its code may write what it likes --------------------------------------------------------

    def _refuse(self, error: Exception) -> None:
        """End it after a malformed message, and tell its owner why."""
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        reason = " ".join(reason.split())[:REASON]
        self._condemn("protocol", UserCodeError, f"wrote on the connection of its process ({reason})")

    def _read(self, message: bytes) -> tuple[dict[str, Any], memoryview]:
        header, inline = incoming.read(message)
        if header["kind"] in REPORTING and not self._unasked.take():
            raise ValueError(f"{header['kind']}: expected fewer messages, got one too many")
        return header, inline

    def _owner_of(self, header: dict[str, Any]) -> str:
        if self.whose is None:
            raise ValueError("expected no request for stored files before there is a session")
        return self.whose[0]

    def most_bytes(self, device: str) -> int:
        if device == HOST:
            return self.settings.code_memory_bytes
        return self._books.accounts.of(self.whose[0]).session_bytes if self.whose is not None else 0

    def _store_requests(self, stores: Stores) -> StoreRequests:
        settings = self.settings
        # Each thread that calls asks for one file at a time; a stop may ask for another.
        most = settings.threads + FURTHER_REQUESTS
        return StoreRequests(stores, self._stored, OF_CODE, most, settings.code_memory_bytes)

    def _check_answer(self, request: RawRequest, response: RawResponse) -> None:
        check_answer(request, response, self.settings)

    def sent_files(self) -> dict[tuple[int, int], int]:
        """Files in memory that its process has sent and this one has still: bytes at the most, by device and inode."""
        buffers = ((self._inodes.get(number), len(view)) for number, view in self._answers.items())
        return {**self._requests.files, **{inode: nbytes for inode, nbytes in buffers if inode is not None}}

    def _map(self, number: int, descriptor: Descriptor) -> None:
        status = descriptor.status()
        super()._map(number, descriptor)
        self._inodes = {known: inode for known, inode in self._inodes.items() if known in self._answers}
        self._inodes[number] = status.st_dev, status.st_ino
        nbytes = sum(map(len, self._answers.values()))
        if len(self._answers) > MAX_BUFFERS or nbytes > self.settings.code_memory_bytes:
            raise ValueError(f"expected less memory in shared buffers, got {nbytes} bytes in {len(self._answers)}")

    def _disconnected(self) -> None:
        self._cut = True
        super()._disconnected()

    # -- its end ------------------------------------------------------------------------------------------------

    def _verdict(self, code: int) -> MXNetError:
        """The error for its owner: what happened, and where in the code, as far as can be known."""
        trace = os.pread(self._trace, TRACE_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")
        seen = self._page.read()
        self._code = self._code or seen.code
        if self.whose is not None and seen.running and seen.commands == self._seen.commands:
            # Of a command that did not come to its end, the process has told nothing.
            self._device_times.add(*self.whose, 0.0, time.monotonic() - self._since)
        self._close()
        if isinstance(self._error, GoneError):
            return self._error
        frames = [(file[:FRAME], line[:FRAME], name[:FRAME]) for file, line, name in own_frames(trace)]
        place = f" at {frames[-1][0]}:{frames[-1][1]} in {frames[-1][2]}" if frames else ""
        self._code = self._code or bool(frames)
        whose = "session's" if self.model is None else "model's"
        if self._error is None:
            self.cause = "exit" if code >= 0 else _name(code)
            kind: type[MXNetError] = UserCodeError if self._code else WorkerDiedError
            cut = self._cut and -code == signal.SIGKILL and not self._lost
            reason = "it broke off its connection" if cut else self._why(code)
            what = f"the {whose} own code ended its process ({reason}){place}"
            if not self._code:
                what = f"the {whose} process ended ({reason})"
        else:
            kind = type(self._error)
            what = f"the {whose} own code {self._error.message}{place}: its process was ended"
        remedy = "make a new session" if self.model is None else "it is started again: try again in a moment"
        self.epitaph = f"session {self.session} is gone: {what}; {remedy}" if self.model is None else what
        detail: dict[str, Any] = {"ended": True}
        if frames:
            lines = [f'  File "{file}", line {line}, in {name}\n' for file, line, name in frames]
            detail["traceback"] = "".join(["Traceback (most recent call last):\n", *lines])
        return kind(f"{what}; {remedy}", detail=detail)

    def _close(self) -> None:
        self._page.close()
        os.close(self._trace)
        self._output.close()

    def clean_up(self) -> None:
        """Take away what it has left: processes, files. May take a moment; not for the event loop."""
        if not end_all_of(self.pid, self.user):
            # Its user stays taken, and its folder: to be root where others still write is no place to be.
            _log.error("what a session's code has started cannot be ended", session=self.session, user=self.user)
            return
        try:
            remove(self.folder)
        except OSError as error:
            _log.error("a session's folder cannot be removed", folder=self.folder, reason=str(error))
        if self._user is not None:
            self._user.release()


def _trace() -> int:
    """A file for the stack of a crash: that size and no other."""
    fd = os.memfd_create("opbox-trace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, TRACE_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def code_environment(settings: Settings) -> dict[str, str]:
    """The variables that every code process has; `code_process.homes` are its own."""
    variables = {
        key: value
        for key, value in environment(settings).items()
        if key in (*PASSED, *PASSED_TO_OPERATORS) or key.startswith(PASSED_BEGINNINGS)
    }
    if has_gpu(settings):
        variables[SHARED_KERNELS] = os.pathsep.join(map(str, kernel_folders()))
    # The process works in its own folder, where a relative path would lead elsewhere.
    variables |= {name: str(Path(path).absolute()) for name, path in _named_paths().items()}
    return {**variables, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}


def _named_files() -> list[Path]:
    """Kernels that were compiled beforehand and the library of cuDNN, where the environment names them."""
    return [Path(path).absolute() for path in _named_paths().values()]


def _named_paths() -> dict[str, str]:
    """The variables that name such a file or folder by a path; a library's bare name is looked up by the loader."""
    folder, library = os.environ.get("OPBOX_CUBINS"), os.environ.get("OPBOX_CUDNN")
    paths = {"OPBOX_CUBINS": folder} if folder else {}
    return paths | ({"OPBOX_CUDNN": library} if library and os.sep in library else {})


def mps_folders() -> list[Path]:
    """Return the folders by which a process reaches NVIDIA's MPS server: its pipes and sockets, and shared memory.

    None where no MPS server runs: CUDA then works without it.
    """
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps").absolute()
    return [pipes, Path("/dev/shm")] if (pipes / "control").exists() else []


def _name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
