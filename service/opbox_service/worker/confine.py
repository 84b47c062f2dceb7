"""Confines the process that runs a session's code: it drops its user, files, network and system calls, and has limits.

Done before there are threads: what one gives up holds for those it starts. A process that is forked (`code_template`)
has one thread; one that is started confines itself before it imports numpy.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from . import landlock, seccomp, system_files

__all__ = [
    "Bounds",
    "at_hand",
    "confine",
    "die_with",
    "keep_apart",
    "keep_modules_reachable",
    "own_packages",
    "reachable",
    "refuse_dumps",
    "tasks_of",
    "unreadable",
]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION = 0x20080522
_CLONE_NEWNET, _CLONE_NEWIPC = 0x40000000, 0x08000000
ADDRESSES = 4 << 30
"""Bytes of address space allowed beyond the memory limit."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a code process.

    Attributes:
        user: the user id that it takes on; 0 to keep its own.
        folder: its private one, that it may write to.
        read: files and folders that it reads, besides the system's and Python's own.
        write: folders that it writes to besides its own, by which it reaches NVIDIA's MPS server; none without one.
        memory, open_files, file_bytes: of the process, and of each file.
        tasks: threads and processes.
        gpu: whether it may see one: CUDA takes address space by the terabyte, so only what is written to counts.
        network: whether it may use one.
        seccomp: whether system calls are refused to it.
    """

    user: int
    folder: str
    read: tuple[str, ...]
    write: tuple[str, ...]
    memory: int
    open_files: int
    file_bytes: int
    tasks: int
    gpu: bool
    network: bool
    seccomp: bool = True


def keep_apart(fd: int, open_files: int) -> int:
    """Move a descriptor above the numbers of all that this process, and what comes of it, can open later.

    So a rule about this number (`seccomp`) is a rule about what is behind it.

    Args:
        fd: the descriptor; it is closed.
        open_files: the limit of open files.

    Returns:
        The new number: the limit, which this process now has.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard - 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + 1, hard))
    os.dup2(fd, number, inheritable=False)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))
    return number


def confine(bounds: Bounds, connection: int | None = None) -> None:
    """Confine this process to `bounds`; OSError when that cannot be.

    Three things are done as far as the system allows, and reported where it does not: Landlock and seccomp need a
    kernel that has them, and a network namespace needs privilege.

    Args:
        bounds: the limits.
        connection: the descriptor that may send others (see `keep_apart`); None: none may.
    """
    if not bounds.network and os.geteuid() == 0:
        _libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC)
    read = [*bounds.read, *_prefixes()]
    if bounds.user:
        read = [reachable(path) for path in read]
        keep_modules_reachable()
        try:
            os.setgroups([])
            os.setgid(bounds.user)
            os.setuid(bounds.user)
        except PermissionError:
            raise PermissionError(
                f"user id {bounds.user} cannot be taken on: expected the capabilities SETUID and SETGID, as root has "
                "outside of containers: grant them, or set OPBOX_CODE_USER=0"
            ) from None
    # Nobody else of the same user reads this memory; a process with a user of its own needs its /proc/self.
    _prctl(_PR_SET_DUMPABLE, 1 if bounds.user else 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)
    _limit(bounds)
    landlock.restrict(
        [*system_files.readable(), *read, *sys.path],
        [bounds.folder, *bounds.write, *system_files.writable(gpu=bounds.gpu)],
        network=bounds.network,
    )
    if os.geteuid() == 0:
        _drop_capabilities()
    if bounds.seccomp:
        seccomp.refuse(connection, network=bounds.network, gpu=bounds.gpu, mps=bool(bounds.write))


def die_with(parent: int) -> None:
    """Have the system kill this process as soon as its parent, or the parent's thread that started it, has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which has ended meanwhile
        os.kill(os.getpid(), signal.SIGKILL)


def refuse_dumps() -> None:
    """Let no other process of the same user read or write this one's memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(what: int, value: int) -> None:
    if _libc.prctl(what, ctypes.c_ulong(value), 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _drop_capabilities() -> None:
    """Root without its powers; having given up new privileges, it does not get them back with another program."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _limit(bounds: Bounds) -> None:
    def limit(what: int, most: int) -> None:
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))

    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_DATA, bounds.memory)
    if not bounds.gpu:
        # Looser: address space is taken ahead, for stacks and the allocator's arenas, and most of it never used.
        limit(resource.RLIMIT_AS, bounds.memory + ADDRESSES)
    limit(resource.RLIMIT_NOFILE, bounds.open_files)
    limit(resource.RLIMIT_FSIZE, bounds.file_bytes)
    others = 0 if bounds.user else tasks_of(os.getuid())
    limit(resource.RLIMIT_NPROC, bounds.tasks + others)
    # When the machine runs out, this goes first. A wish, not a wall: some containers do not let it be said.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def tasks_of(user: int) -> int:
    """Threads of a user's processes."""
    count = 0
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            lines = Path(folder, "status").read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        if int(fields["Uid"].split()[0]) == user:
            count += int(fields["Threads"])
    return count


def _prefixes() -> set[str]:
    return {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}


def keep_modules_reachable() -> None:
    """Modules yet to be imported are found by the names that `reachable` gives."""
    sys.path[:] = [reachable(path) for path in sys.path]
    sys.path_importer_cache.clear()
    for name, module in list(sys.modules.items()):
        paths = getattr(module, "__path__", None)
        if isinstance(paths, list):
            paths[:] = [reachable(path) for path in paths]
        if name.startswith("__editable__"):
            mapping: dict[str, str] = getattr(module, "MAPPING", {})
            mapping.update({key: reachable(path) for key, path in mapping.items()})


def own_packages() -> list[Path]:
    """The folders of the packages that a confined process runs."""
    specs = [find_spec(name) for name in ("opbox_protocol", "opbox", "opbox_ops", "opbox_service")]
    return [Path(path) for spec in specs if spec is not None for path in spec.submodule_search_locations or ()]


def reachable(path: str) -> str:
    """A name for a file or folder by which any user gets at it.

    A server that runs as root may have its Python below a folder that only root enters (/root/.pyenv). An open
    descriptor leads past that folder, and to nothing else in it.
    """
    if not path or not os.path.exists(path):
        return path
    real = Path(os.path.realpath(path))
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents):
        return path
    folder, name = (real, "") if real.is_dir() else (real.parent, real.name)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    return os.path.join(f"/proc/self/fd/{fd}", name) if name else f"/proc/self/fd/{fd}"


def at_hand(path: str, folder: str) -> str:
    """A name for a file by which any user reads it; a copy in `folder` where its own folder lets nobody else in."""
    file = Path(path)
    if not file.is_file() or (file.parent.stat().st_mode & stat.S_IXOTH and file.stat().st_mode & stat.S_IROTH):
        return reachable(path)
    # Each in a folder of its own: two may have one name.
    own = Path(tempfile.mkdtemp(prefix="ops-", dir=folder))
    own.chmod(0o755)
    copied = shutil.copyfile(path, own / file.name)
    copied.chmod(0o644)
    return str(copied)


def unreadable(packages: Iterable[Path]) -> str | None:
    """A file of these or of what else this process runs, or the folder of one, that not every user may read; or None.

    Folders above need not let anybody through (see `reachable`).
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())} - {None}
    files.update(str(path) for package in packages for path in package.rglob("*.py"))
    for file in sorted(map(str, files)):
        for path, needed in ((os.path.dirname(file), stat.S_IROTH | stat.S_IXOTH), (file, stat.S_IROTH)):
            if os.path.exists(path) and os.stat(path).st_mode & needed != needed:
                return path
    return None
