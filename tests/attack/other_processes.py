"""Code that looks for the machine's other processes and for what they do: arguments, states, files, and who ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS", "look_around"]

SECRET = "--password=of-another-program"


def look(box: Box) -> Outcome:
    """Beside a program whose arguments have a secret."""
    sleeper = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", SECRET]
    with subprocess.Popen(sleeper, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            session, answer = box.run_code(look_around)
        finally:
            other.kill()
    session.delete()
    return Outcome(box.text(answer) == "reached: ", box.text(answer))


def look_around() -> object:
    import contextlib
    import ctypes
    import fcntl
    import os
    import platform
    import signal

    libc = ctypes.CDLL(None, use_errno=True)
    arm = platform.machine() == "aarch64"
    reached: list[str] = []

    def attempt(name: str, action: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            if action() != -1 and name not in reached:
                reached.append(name)

    def content(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read(1 << 16)

    def find(path: str, words: bytes) -> int:
        return -1 if words not in content(path) else 0

    def watch(folder: str) -> object:
        return libc.inotify_add_watch(libc.inotify_init(), folder.encode(), 0xFFF)

    def notify(folder: str) -> None:
        fcntl.fcntl(os.open(folder, os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_CREATE)

    own, parent = os.getpid(), os.getppid()
    # Names of processes are found by trying, too.
    others = {1, parent, *range(max(2, own - 500), own + 500)} - {own}
    attempt("list of processes", lambda: others.update(int(name) for name in os.listdir("/proc") if name.isdigit()))
    others -= {own, *map(int, os.listdir("/proc/self/task"))}
    for pid in sorted(others):
        attempt("secret", lambda pid=pid: find(f"/proc/{pid}/cmdline", b"password=" + b"of-another-program"))
        for name in (
            "cmdline",
            "status",
            "stat",
            "statm",
            "comm",
            "cgroup",
            "environ",
            "maps",
            "limits",
            "io",
            "net/unix",
        ):
            attempt(name, lambda pid=pid, name=name: content(f"/proc/{pid}/{name}"))
        for name in ("fd", "task", "ns"):
            attempt(name, lambda pid=pid, name=name: os.listdir(f"/proc/{pid}/{name}"))
    for name in ("locks", "keys", "key-users", "sysvipc/shm", "interrupts", "cmdline", "schedstat", "vmstat"):
        attempt(name, lambda name=name: content(f"/proc/{name}"))
    folder = os.path.dirname(os.getcwd())
    for path in ("/tmp", "/run", "/dev/shm", "/sys/fs/cgroup", "/proc/sysvipc", folder, os.path.dirname(folder)):
        attempt(f"list of {path}", lambda path=path: os.listdir(path))
    for path in ("/tmp", folder, "/usr", f"/proc/{parent}"):
        attempt(f"watch of {path}", lambda path=path: watch(path))
    attempt("notice of /etc", lambda: notify("/etc"))
    buffer = ctypes.create_string_buffer(4096)
    for name, number, arguments in (
        ("end of a process", 434, (parent, 0)),
        ("memory", (310, 270)[arm], (parent, buffer, 1, buffer, 1, 0)),
        ("limits of a process", (302, 261)[arm], (parent, 7, None, buffer)),
        ("priority", (141, 140)[arm], (0, parent, 19)),
        ("turns", (144, 119)[arm], (parent, 5, buffer)),
    ):
        attempt(name, lambda number=number, arguments=arguments: libc.syscall(number, *arguments))
    attempt("signal", lambda: os.kill(parent, signal.SIGCONT))
    return "reached: " + ", ".join(reached)


ATTACKS = [Attack("other-processes", "code that looks for the machine's other processes", look)]
