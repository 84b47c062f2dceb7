"""A worker for one session that brings code: confined, watched, and taken apart when it ends."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from opbox_ops.errors import DeadlineError, GoneError, OpboxError, UserCodeError, WorkerDiedError

from ..settings import Settings
from .confine import Bounds
from .host import Outcome, Request
from .progress import Progress, Seen
from .remains import User, end_all_of, make_folder, remove
from .stacks import own_frames
from .worker import Worker, environment, reason_of

__all__ = ["CodeWorker"]

PASSED = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PASSED_BEGINNINGS = ("LC_", "CUDA_", "NVIDIA_", "CUPY_", "MKL_", "OMP_", "OPENBLAS_")
"""What such a process sees of the server's environment; nothing that could be a secret."""
TRACE_BYTES = 1 << 16
LAST_WORDS_S = 0.05
"""Between asking a process for its stack and ending it."""

_log = structlog.get_logger("opbox.code")


class CodeWorker(Worker):
    """See the module.

    Args:
        settings: of the server.
        on_end: called when it has ended.
        user: whom it becomes; None to stay the server's.

    Attributes:
        session: the id of its session, once it has one.
        ttl_s: of that session.
        cause: why it was ended, in a word, for the metrics.
        epitaph: why, in a sentence, for its owner.
    """

    def __init__(self, settings: Settings, on_end: Callable[[Worker], None], user: User | None) -> None:
        super().__init__(settings, on_end)
        self._user = user
        self.user = user.id if user is not None else 0
        self.session: str | None = None
        self.ttl_s = settings.max_ttl_s
        self.cause = ""
        self.epitaph = ""
        self.folder = make_folder(user)
        self._page = Progress()
        self._trace = os.memfd_create("opbox-trace", os.MFD_CLOEXEC)
        self._seen = Seen()
        self._since = 0.0
        self._cpu_before = 0.0
        self._code = False
        self._error: OpboxError | None = None
        self._starting: asyncio.Task[None]
        self._used = time.monotonic()
        self._cut = False

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        fds = [fd, self._page.fd, self._trace]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "opbox_service.worker.code_process", *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            pass_fds=fds,
            start_new_session=True,
            env=_environment(self._settings, self.folder),
            cwd=self.folder,
        )

    def _further_settings(self) -> dict[str, Any]:
        told = self._settings
        packages = [str(path) for name in ("opbox", "opbox_ops", "opbox_service") for path in _folders(name)]
        gpu = _gpu(told)
        bounds = Bounds(
            user=self.user,
            folder=self.folder,
            read=(*packages, *map(str, told.code_reads), *(str(path.absolute().parent) for path in told.ops)),
            memory=told.code_memory_bytes,
            open_files=told.code_open_files,
            file_bytes=told.code_file_bytes,
            tasks=told.code_tasks + told.threads + 2 * (os.cpu_count() or 1) + 4,
            gpu=gpu,
            network=told.code_network,
        )
        return {"bounds": asdict(bounds)}

    def begin(self) -> None:
        """Start; `up` waits until it has."""
        self._starting = asyncio.create_task(self._start_whole())
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _start_whole(self) -> None:
        try:
            await self.start()
        except BaseException:
            if self._process is None and not self.ended:
                self.ended = True
                self._on_end(self)
            raise

    async def up(self) -> None:
        """Wait until it takes calls; OpboxError when it does not come to that."""
        await asyncio.shield(self._starting)

    async def gone(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._exited)

    @property
    def expired(self) -> bool:
        """Whether its session has ended of itself, or would have, could it."""
        return self.session is not None and not self.ended and (not self.sessions or self.idle_s() > self.ttl_s + 30)

    # -- watching -----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """End it if the command that it is at has taken too long, or it has grown too large. Called now and then."""
        if self.ended or self._process is None or not self._process.pid or self._error is not None:
            return
        now, (cpu, resident) = time.monotonic(), _usage(self.pid)
        seen = self._page.read()
        self._code = self._code or seen.code
        if (seen.commands, seen.running) != (self._seen.commands, self._seen.running):
            self._seen, self._since, self._cpu_before = seen, now, cpu
        told = self._settings
        if not self._code:
            return
        if resident > told.code_memory_bytes:
            self._condemn("memory", UserCodeError, f"held more than {told.code_memory_bytes} bytes of memory")
        elif seen.running and now - self._since > told.code_deadline_s:
            self._condemn("deadline", DeadlineError, f"took longer than {told.code_deadline_s:g} s for one command")
        elif seen.running and cpu - self._cpu_before > told.code_cpu_s:
            self._condemn("cpu", DeadlineError, f"used more than {told.code_cpu_s:g} processor seconds for one command")

    def retire(self, epitaph: str, cause: str = "") -> None:
        """End it, for a reason that is nobody's fault."""
        if self._error is None:
            self.cause, self.epitaph, self._error = cause, epitaph, GoneError(epitaph)
        self.kill()

    def _condemn(self, cause: str, kind: type[OpboxError], what: str) -> None:
        self.cause, self._error = cause, kind(what)
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
        self._loop.call_later(LAST_WORDS_S, self.kill)

    def call(self, request: Request, deadline_s: float) -> asyncio.Future[Outcome]:
        self._used = time.monotonic()
        return super().call(request, deadline_s)

    def idle_s(self) -> float:
        """How long it has had nothing to do, as far as can be seen from here."""
        return 0.0 if self._pending or self._page.read().running else time.monotonic() - self._used

    def _malformed(self) -> None:
        self._condemn("protocol", UserCodeError, "wrote on the connection of its process")

    def _disconnected(self) -> None:
        self._cut = True
        super()._disconnected()

    # -- its end ------------------------------------------------------------------------------------------------

    def _verdict(self, code: int) -> OpboxError:
        """What its owner is told: what happened, and where in the code, as far as can be known."""
        trace = os.pread(self._trace, TRACE_BYTES, 0).decode("utf-8", "replace")
        os.close(self._trace)
        self._code = self._code or self._page.read().code
        self._page.close()
        if isinstance(self._error, GoneError):
            return self._error
        frames = own_frames(trace)
        place = f" at {frames[-1][0]}:{frames[-1][1]} in {frames[-1][2]}" if frames else ""
        self._code = self._code or bool(frames)
        if self._error is None:
            self.cause = "exit" if code >= 0 else _name(code)
            kind: type[OpboxError] = UserCodeError if self._code else WorkerDiedError
            reason = "it broke off its connection" if self._cut and -code == signal.SIGKILL else reason_of(code)
            what = f"the session's own code ended its process ({reason}){place}"
            if not self._code:
                what = f"the session's process ended ({reason})"
        else:
            kind = type(self._error)
            what = f"the session's own code {self._error.message}{place}: its process was ended"
        self.epitaph = f"session {self.session} is gone: {what}; make a new session"
        detail: dict[str, Any] = {"ended": True}
        if frames:
            lines = [f'  File "{file}", line {line}, in {name}\n' for file, line, name in frames]
            detail["traceback"] = "".join(["Traceback (most recent call last):\n", *lines])
        return kind(f"{what}; make a new session", detail=detail)

    def clean_up(self) -> None:
        """Take away what it has left: processes, files. May take a moment; not for the event loop."""
        end_all_of(self.pid, self.user)
        remove(self.folder)
        if self._user is not None:
            self._user.release()


def _environment(settings: Settings, folder: str) -> dict[str, str]:
    told = {
        key: value for key, value in environment(settings).items() if key in PASSED or key.startswith(PASSED_BEGINNINGS)
    }
    homes = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "CUPY_CACHE_DIR"), folder)
    return {**told, **homes, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}


def _folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []


def _gpu(settings: Settings) -> bool:
    named = settings.devices or (settings.device, "gpu")
    return any(name.startswith("gpu") for name in named) and bool(glob.glob("/dev/nvidia[0-9]*"))


def _usage(pid: int) -> tuple[float, int]:
    """Processor seconds and resident bytes; nothing of a process that has ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    # The fields from the third on, as proc(5) counts them.
    cpu = (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
    return cpu, int(told[21]) * os.sysconf("SC_PAGE_SIZE")


def _name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
