"""Code that tries what the kernel offers besides files and TCP: others' sockets, keys, queues, tracing, namespaces."""

from __future__ import annotations

import os
import socket
import tempfile

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS"]

NAME = "opbox-attack-socket"


def reach(box: Box) -> Outcome:
    """With two sockets in the temporary folder that let everybody in."""
    folder = os.path.join(tempfile.gettempdir(), NAME)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    paths = [os.path.join(folder, kind) for kind in ("stream", "datagram")]
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        for end, path in zip((stream, datagrams), paths, strict=True):
            end.bind(path)
            os.chmod(path, 0o777)
        stream.listen()
        try:
            session, answer = box.run_code(try_all)
        finally:
            for path in paths:
                os.unlink(path)
            os.rmdir(folder)
    session.delete()
    return Outcome(box.text(answer) == "reached: ", box.text(answer))


def try_all() -> object:
    import ctypes
    import os
    import platform
    import socket
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    arm = platform.machine() == "aarch64"
    folder = "/tmp/opbox-attack-socket/"
    reached = []

    def attempt(name, action):  # type: ignore[no-untyped-def]  # this source goes to the server
        try:
            if action() != -1:
                reached.append(name)
        except OSError:
            pass

    attempt("unix path", lambda: socket.socket(socket.AF_UNIX).connect(folder + "stream"))
    pair = socket.SOCK_DGRAM
    attempt("datagrams", lambda: socket.socketpair(socket.AF_UNIX, pair)[0].sendto(b"x", folder + "datagram"))
    for name, family in (("netlink", 16), ("packet", 17), ("alg", 38), ("vsock", 40)):
        kind = socket.SOCK_SEQPACKET if name == "alg" else socket.SOCK_DGRAM
        attempt(name, lambda family=family, kind=kind: socket.socket(family, kind))
    buffer = ctypes.create_string_buffer(4096)
    perf = ctypes.create_string_buffer(struct.pack("<II", 1, 120) + bytes(112))
    for name, number, arguments in (
        ("key", (248, 217)[arm], (b"user", b"mine", b"word", 4, -3)),
        ("sysv memory", (29, 194)[arm], (0, 4096, 0o1600)),
        ("sysv queue", (68, 186)[arm], (0, 0o1600)),
        ("posix queue", (240, 180)[arm], (b"opbox", os.O_CREAT | os.O_RDWR, 0o600, None)),
        ("io_uring", 425, (4, buffer)),
        ("userfaultfd", (323, 282)[arm], (1,)),
        ("perf", (298, 241)[arm], (perf, 0, -1, -1, 0)),
        ("user namespace", (272, 97)[arm], (0x10000000,)),
        ("personality", (135, 92)[arm], (0x0040000,)),
        ("process_vm", (310, 270)[arm], (os.getpid(), buffer, 0, buffer, 0, 0)),
    ):
        attempt(name, lambda number=number, arguments=arguments: libc.syscall(number, *arguments))
    return "reached: " + ", ".join(reached)


ATTACKS = [Attack("system-calls", "code that tries what leads out of its process", reach)]
