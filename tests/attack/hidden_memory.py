"""Code that holds three times its memory where no process has it: in messages on their way, given up, in sockets."""

from __future__ import annotations

from collections.abc import Callable

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS"]

LIMIT_MIB = 1024
"""What a session's code may hold (`tests.contract.isolation.settings`)."""
SETTINGS = {"OPBOX_CODE_DEADLINE_S": "50"}


def hold(function: Callable[[], object]) -> Callable[[Box], Outcome]:
    """The attack by a function that returns how many MiB it holds at its end."""

    def run(box: Box) -> Outcome:
        session, answer = box.run_code(function)
        if answer.status == 200:
            session.delete()
            mib = int(box.text(answer))
            return Outcome(mib <= LIMIT_MIB, f"{mib} MiB were held")
        words = "refused" if "Error" in answer.error and "its process was ended" not in answer.error else "ended"
        return Outcome(True, f"{words}: {answer.error[:100]}")

    return run


def in_flight() -> object:
    import os
    import socket

    ours, theirs = socket.socketpair()
    os.dup(theirs.detach())
    for _ in range(60):
        fd = os.memfd_create("mine")
        for _ in range(50):
            os.write(fd, b"x" * (1 << 20))
        socket.send_fds(ours, [b"x"], [fd])
        os.close(fd)
    os.dup(ours.detach())
    return 50 * 60


def given_up() -> object:
    import mmap
    import time

    blocks = []
    for _ in range(48):
        blocks.append(mmap.mmap(-1, 1 << 26))
        blocks[-1].write(b"x" * (1 << 26))
        blocks[-1].madvise(mmap.MADV_DONTNEED)
    time.sleep(5)
    return 64 * len(blocks)


def in_sockets() -> object:
    import os
    import select
    import socket
    import time

    reading, writing = os.pipe()
    for _ in range(15):
        if os.fork() == 0:
            pairs = []
            sent = 0
            while True:
                try:
                    pairs.append(socket.socketpair())
                except OSError:
                    break
                for end in pairs[-1]:
                    end.setblocking(False)
                    for size in (1 << 15, 1 << 10):
                        try:
                            while True:
                                sent += end.send(b"x" * size)
                        except BlockingIOError:
                            pass
            os.write(writing, b"%12d" % sent)
            time.sleep(600)
    total, until = 0, time.monotonic() + 30
    while time.monotonic() < until:
        if select.select([reading], [], [], 5)[0]:
            total += int(os.read(reading, 12))
    return total >> 20


ATTACKS = [
    Attack("memory-in-flight", "files in memory, sent to itself and closed", hold(in_flight), SETTINGS),
    Attack("memory-given-up", "memory for others to share, unmapped page by page", hold(given_up), SETTINGS),
    Attack("memory-in-sockets", "15 processes with 250 full pairs of sockets each", hold(in_sockets), SETTINGS),
]
