"""Functions of kernels in C: those that the distribution brings compiled, and those that this machine's compiler makes.

A wheel has the kernels of fixed texts in libraries (`built_kernels`). What they have not, the formulas of a graph, is
compiled here where there is a compiler, and so is everything in an installation from a source folder.

A kernel's file is named after a hash of its text, the compiler with its options, and the processor. The folder is the
user's alone: it is used only if it belongs to this user and nobody else can write to it, files come into it whole, by a
rename, and a file that another has made, or whose content is not what the hash at its end says, is not loaded. Without
a compiler, or such a folder, there are no kernels but those built before. A process that runs a session's code compiles
none: it reads those of its server (`read_only`).

A text that does not compile is a fault, of the text or of the compiler's installation: it is logged once, as an error
with the command and the compiler's words, and NumPy computes. A text that needs vectors is asked for only where the
processor has them (`processor`).

    OPBOX_DISABLE       c-kernels: none
    OPBOX_C_KERNELS     now: who asks for a kernel waits for it; otherwise they are compiled in the background
    OPBOX_CACHE_DIR     the folder; by default opbox below XDG_CACHE_HOME, or below ~/.cache; where that cannot be
                        written to, opbox-N below the folder of temporary files, for the user id N
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import queue
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from opbox_protocol.errors import FileError
from opbox_protocol.own_folders import check_own

from ... import switches
from ...compiler_process import run_compiler
from . import processor
from .built_kernels import built_kernels
from .gomp_threads import PAUSES, Threads, bounded_spinning, load_threads, rounds_of
from .kernel_build import EXACT, whole

__all__ = [
    "allows_vectors",
    "cache_folder",
    "compiled_function",
    "compiled_functions",
    "has_kernels",
    "is_built",
    "is_stored",
    "may_compile",
    "mode",
    "read_only",
    "request",
    "share_folder",
    "shared_threads",
    "spins",
    "thread_count",
]

OPTIONS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-w", *EXACT)
MAX_SECONDS = 300
"""Maximum time of the compiler for one kernel. It takes 0.1 to 0.3 s of a core, products in blocks 5 s; beside ten busy
processes a minute."""
MAX_KERNELS = 256
"""Maximum number of kernels that a process compiles: one that asks for more has formulas that differ each time."""
MAX_FILES = 1024
"""Maximum number of compiled kernels in the cache's folder."""
MAX_LOGGED = 4000
"""Characters of a compiler's words that are logged, from their start: its first error is the one to mend."""
_MAKING = "making-"

_log = logging.getLogger(__name__)
_waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_compiled = 0
_failed: set[Path] = set()
"""Files that could not be made or loaded: this process does not try again."""
_HASHED = b"opbox kernel, sha256 "
"""Stands at the end of a kernel's file, before the hash of all that is before it."""
_server: tuple[Path | None, int] | None = None
"""The folder of the server's kernels, if any, and the user who makes them, in a process that only reads them."""


def mode() -> str:
    """Return "off", "now" or "background", by OPBOX_DISABLE and OPBOX_C_KERNELS."""
    if switches.is_off("c-kernels"):
        return "off"
    return "now" if os.environ.get("OPBOX_C_KERNELS") == "now" else "background"


def allows_vectors() -> bool:
    """Return whether kernels written for vectors (vectors.h) may be asked for on this processor, by `mode`."""
    return mode() != "off" and processor.has_vectors()


def read_only(folder: Path | None, owner: int) -> None:
    """Load those kernels that `owner` has made in `folder`, if there is one, in this process, and compile none."""
    global _server
    _server = folder, owner


def share_folder() -> Path | None:
    """The folder, which processes of other users may read from here on; None where there is none."""
    folder = cache_folder()
    if folder is not None:
        with suppress(OSError):
            folder.chmod(0o755)
            for path in folder.glob("*.so"):
                path.chmod(0o644)
    return folder


def request(work: Callable[[], None]) -> None:
    """Run `work` in the background, after what was asked for before."""
    global _thread
    _waiting.put(work)
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_serve, name="opbox C kernels", daemon=True)
            _thread.start()


def _serve() -> None:
    while True:
        work = _waiting.get()
        try:
            work()
        except Exception:
            _log.exception("a C kernel was not made: NumPy computes instead")


def has_kernels() -> bool:
    """Return whether kernels of fixed texts are to be expected: they are built, or may be compiled."""
    return mode() != "off" and (built_kernels() is not None or may_compile())


def may_compile() -> bool:
    """Return whether texts may be compiled: there is a compiler, a folder for what it makes, and `mode` is not off."""
    return mode() != "off" and _compiler() is not None and cache_folder() is not None


def compiled_function(text: str, name: str, *, threads: bool = False) -> Any:
    """The function `name` of a C text: built before, from the folder, or compiled now; None where that cannot be.

    With `threads` the text has loops for OpenMP.
    """
    return _built(text, name, threads=threads) or _function(whole(text, threads), name)


def compiled_functions(text: str, types: Mapping[str, Sequence[Any]]) -> list[Any] | None:
    """Functions of a text with loops for OpenMP that return nothing, by name with their arguments' types; in order.

    None where one cannot be had.
    """
    functions = []
    for name in types:
        function = compiled_function(text, name, threads=True)
        if function is None:
            return None
        functions.append(function)
    for function, arguments in zip(functions, types.values(), strict=True):
        function.restype, function.argtypes = None, list(arguments)
    return functions


def is_built(text: str, name: str, *, threads: bool = False) -> bool:
    """Return whether `compiled_function` has the function without a compiler."""
    return _built(text, name, threads=threads) is not None


@cache
def _built(text: str, name: str, *, threads: bool) -> Any:
    """The function of the distribution's library; with `threads` it runs in the threads that all kernels share."""
    library = built_kernels()
    function = None if library is None else library.function(whole(text, threads), name)
    if library is not None and function is not None and threads and (shared := shared_threads()) is not None:
        library.use_threads(shared)
    return function


def _in_threads(text: str) -> bool:
    return text.startswith(whole("", threads=True))


@cache
def _function(text: str, name: str) -> Any:
    folder, compiler = cache_folder(), _compiler()
    if folder is None or compiler is None:
        return None
    path = _path(folder, compiler, text)
    library = _loaded(path, threads=_in_threads(text)) if _trusted(path) else None
    if library is None and _server is None and path not in _failed and _is_compiled(compiler[0], text, path):
        library = _loaded(path, threads=_in_threads(text))
        if library is None:
            _failed.add(path)
    if library is None:
        return None
    try:
        return getattr(library, name)
    except AttributeError:
        _log.error("a C kernel has no function %s: NumPy computes instead", name)
        return None


def _loaded(path: Path, *, threads: bool) -> ctypes.CDLL | None:
    """The library of a file, which is removed where it cannot be loaded.

    A file that was there may be cut short, by a full disk or a machine that stopped, and is then compiled anew.
    """
    try:
        with bounded_spinning(spins) if threads else nullcontext():
            return ctypes.CDLL(str(path))
    except OSError as error:
        _log.error("a C kernel cannot be loaded: %s", error)
        if _server is None:
            path.unlink(missing_ok=True)
        return None


def _is_compiled(compiler: str, text: str, path: Path) -> bool:
    """Compile the text to `path`, and return whether it is there; what prevents it is logged, and not tried again."""
    try:
        _compile(compiler, text, path)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip()[:MAX_LOGGED] or "nothing"
        command = shlex.join(map(str, error.cmd))
        _log.error(
            "a C kernel does not compile: NumPy computes instead. %s ended with status %d and said:\n%s",
            *(command, error.returncode, words),
        )
    except subprocess.TimeoutExpired as error:
        command = shlex.join(map(str, error.cmd))
        _log.warning("a C kernel was not made within %g s: NumPy computes instead. %s", error.timeout, command)
    except OSError as error:
        _log.warning("a C kernel was not made: NumPy computes instead. %s", error)
    if _trusted(path):
        return True
    with suppress(OSError):
        path.unlink(missing_ok=True)  # cut short: it would be read again and again
    _failed.add(path)
    return False


@cache
def spins() -> int:
    """Return for how many rounds libgomp's threads are to spin on this processor (`gomp_threads`)."""
    return rounds_of(None if mode() == "off" else compiled_function(PAUSES, "opbox_pauses"))


@cache
def shared_threads() -> Threads | None:
    """Return the threads that all kernels share, which are also oneDNN's; None where the machine has no libgomp."""
    return load_threads(spins)


def thread_count() -> int:
    """Return how many threads share the work of a kernel."""
    threads = shared_threads()
    return 1 if threads is None else int(ctypes.CFUNCTYPE(ctypes.c_int)(threads.most)())


def is_stored(text: str, *, threads: bool = False) -> bool:
    """Return whether the cache folder has the library compiled from this text, as `compiled_function` takes it."""
    folder, compiler = cache_folder(), _compiler()
    return folder is not None and compiler is not None and _trusted(_path(folder, compiler, whole(text, threads)))


def _path(folder: Path, compiler: tuple[str, str], text: str) -> Path:
    content = "\0".join((text, *compiler, *OPTIONS, _processor()))
    return folder / f"{hashlib.sha256(content.encode()).hexdigest()}.so"


def cache_folder() -> Path | None:
    """The folder, made if need be; None where it is not this user's alone."""
    if _server is not None:
        return _server[0]
    place = os.environ.get("OPBOX_CACHE_DIR")
    if place:
        return _own_folder(Path(place))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    shared = Path(tempfile.gettempdir(), f"opbox-{os.geteuid()}")
    return _users_folder(Path(home, "opbox")) or _own_folder(shared, others=True)


def _users_folder(place: Path) -> Path | None:
    """As `_own_folder`; None where root would make it in another user's home."""
    try:
        check_own(place)
    except FileError:
        return None
    return _own_folder(place)


def _own_folder(place: Path, *, others: bool = False) -> Path | None:
    """The folder `kernels` below `place`, made if need be; None where somebody else could write to it.

    With `others`, where others may have made `place`, or put a link there: None where that is not this user's alone.
    """
    folder = place / "kernels"
    if not folder.is_absolute():
        return None
    fd = -1
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if others else 0))
        if others and not _is_ours(os.fstat(fd)):
            return None
        with suppress(FileExistsError):
            os.mkdir(folder.name, mode=0o700, dir_fd=fd)
        status = os.stat(folder.name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
    finally:
        if fd >= 0:
            os.close(fd)
    ours = stat.S_ISDIR(status.st_mode) and _is_ours(status)
    return folder if ours and os.access(folder, os.W_OK) else None


def _is_ours(status: os.stat_result) -> bool:
    """Return whether who makes the kernels owns the file and no other user may write to it."""
    owner = os.geteuid() if _server is None else _server[1]
    return status.st_uid == owner and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted(path: Path) -> bool:
    """Return whether a file is a kernel that its maker has written, and all of it is there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not _is_ours(status):
            return False
        content, hashed, digest = file.read().rpartition(_HASHED)
    return bool(hashed) and digest == hashlib.sha256(content).digest()


def _compile(compiler: str, text: str, path: Path) -> None:
    """Put the compiled text at `path`, whole or not at all."""
    global _compiled
    if _compiled >= MAX_KERNELS:
        raise OSError(f"this process has compiled {MAX_KERNELS}, which is the most that one does")
    _compiled += 1
    _prune(path.parent)
    nice = shutil.which("nice")
    command = [*([nice, "-n", "10"] if nice else []), compiler, *OPTIONS]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_MAKING) as place:
        target = os.path.join(place, "kernel.so")
        command += [*(["-fopenmp"] if _in_threads(text) else []), "-x", "c", "-", "-o", target]
        run_compiler(command, text=text.encode(), folder=place, seconds=MAX_SECONDS).check_returncode()
        with open(target, "rb+") as file:
            digest = hashlib.sha256(file.read()).digest()
            file.write(_HASHED + digest)
        # Others may read it where the folder lets them in: processes for the code of sessions.
        os.chmod(target, 0o644 if path.parent.stat().st_mode & stat.S_IROTH else 0o600)
        os.replace(target, path)


def _prune(folder: Path) -> None:
    """Remove the oldest files, where they have become many, and what processes that ended amid compiling have left."""
    files: list[tuple[float, str]] = []
    for entry in os.scandir(folder):
        with suppress(OSError):  # another process has removed it
            seconds = entry.stat().st_mtime
            if entry.name.endswith(".so"):
                files.append((seconds, entry.path))
            elif entry.name.startswith(_MAKING) and time.time() - seconds > 2 * MAX_SECONDS:
                shutil.rmtree(entry.path, ignore_errors=True)
    for _, path in sorted(files)[: max(len(files) - MAX_FILES, 0)]:
        with suppress(OSError):
            os.unlink(path)


@cache
def _compiler() -> tuple[str, str] | None:
    """The compiler, and what tells it from others; None where there is none."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return None
    path = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if path is None:
        return None
    status = os.stat(path)
    return path, f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"


@cache
def _processor() -> str:
    """Identify the processor, because `-march=native` compiles for this one alone."""
    known = processor.description()
    names = "vendor_id", "cpu family", "model", "flags", "CPU part", "Features"
    return "\n".join(known.get(name, "") for name in names) or platform.processor()
