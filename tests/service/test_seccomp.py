"""The program that judges a process's system calls: numbers, verdicts on both kinds of processors, effect."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from opbox_service.worker import seccomp
from opbox_service.worker.system_calls import LAST, NUMBERS, REFUSED
from tests.service.test_confined_cuda import bounds_of

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
CONNECTION = 512
ORDINARY = {
    "x86_64": {"read": 0, "mmap": 9, "madvise": 28, "socket pair": 53, "fork": 57, "execve": 59, "futex": 202},
    "aarch64": {"read": 63, "mmap": 222, "madvise": 233, "execve": 221, "futex": 98},
}
ALLOWED = 0
needs_seccomp = pytest.mark.skipif(not seccomp.available(), reason="needs a kernel with seccomp")


def verdict(
    machine: str,
    call: str | int,
    *arguments: int,
    architecture: int = 0,
    network: bool = False,
    gpu: bool = False,
    mps: bool = False,
) -> int:
    """The error that the program answers a call with, as the kernel runs it; 0 where it lets it pass."""
    number = NUMBERS[machine][call] if isinstance(call, str) else call
    words = [argument & (1 << 64) - 1 for argument in (*arguments, *[0] * 6)[:6]]
    data = struct.pack("<IIQ6Q", number, architecture or MACHINES[machine], 0, *words)
    steps = list(struct.iter_unpack("<HBBI", seccomp.program(machine, CONNECTION, network=network, gpu=gpu, mps=mps)))
    at = value = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            value &= operand
        elif code in (0x15, 0x25):
            at += if_true if (value == operand if code == 0x15 else value > operand) else if_false
        else:
            assert code == 0x06
            return ALLOWED if operand == 0x7FFF0000 else operand & 0xFFFF


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_systems_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip("needs the C library's headers")
    known = {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    }
    ours = NUMBERS[machine]
    assert {name: ours[name] for name in ours.keys() & known.keys()} == {
        name: known[name] for name in ours.keys() & known.keys()
    }
    assert not {name for name in ours.keys() - known.keys() if ours[name] <= 450}  # newer than the headers may be


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_refused(machine: str) -> None:
    numbers = NUMBERS[machine]
    for names in REFUSED.values():
        for name in names.split():
            if name in numbers:
                assert verdict(machine, name) == errno.EPERM, name
    for name, number in ORDINARY[machine].items():
        assert verdict(machine, number, 1, socket.SOCK_STREAM) == ALLOWED, name
    assert verdict(machine, "clone3") == errno.ENOSYS  # which the C library has an answer to
    assert verdict(machine, LAST) == ALLOWED
    assert verdict(machine, LAST + 1) == errno.ENOSYS
    assert verdict(machine, 0x40000000) == errno.ENOSYS  # read, by the numbers of x32
    assert verdict(machine, 3, architecture=0x40000003) == errno.ENOSYS  # of a program for 32 bits


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_refused_by_its_arguments(machine: str) -> None:
    for call, arguments, error in (
        ("clone", (0x3D0F00,), ALLOWED),
        ("clone", (0x10000000 | 17,), errno.EPERM),
        ("clone", (0x40000000,), errno.EPERM),
        ("personality", (0xFFFFFFFF,), ALLOWED),
        ("personality", (0x0040000,), errno.EPERM),
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (1, 7), errno.EPERM),
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 1 << 32 | 0x5412), errno.EPERM),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_STREAM | 0o2000000), ALLOWED),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_DGRAM), errno.EACCES),
        ("sendmsg", (CONNECTION,), ALLOWED),
        ("sendmsg", (CONNECTION - 1,), errno.EPERM),
        ("sendmmsg", (CONNECTION,), errno.EPERM),
        ("sendto", (5, 1 << 40, 9, 0, 0), ALLOWED),
        ("sendto", (5, 1 << 40, 9, 0, 1 << 40), errno.EACCES),
        ("setsockopt", (5, 1, 2), ALLOWED),
        ("setsockopt", (5, 1, 7), errno.EPERM),
        *[(name, (), errno.EACCES) for name in ("socket", "bind", "listen", "connect", "accept", "accept4")],
    ):
        assert verdict(machine, call, *arguments) == error, (call, arguments)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mps", [False, True])
def test_what_cuda_may(machine: str, mps: bool) -> None:
    """It binds a socket of its own when it starts, or ends with an error; it reaches MPS if there is one."""
    rest = ALLOWED if mps else errno.EACCES
    for call, arguments, error in (
        ("socket", (socket.AF_UNIX, socket.SOCK_SEQPACKET | 0o2000000), ALLOWED),
        ("socket", (socket.AF_UNIX, socket.SOCK_DGRAM), rest),
        ("socket", (socket.AF_INET, socket.SOCK_STREAM), errno.EACCES),
        ("socket", (socket.AF_NETLINK, socket.SOCK_STREAM), errno.EACCES),
        ("bind", (), ALLOWED),
        ("listen", (), ALLOWED),
        ("accept", (), rest),
        ("connect", (), rest),
        ("sendmsg", (5,), ALLOWED if mps else errno.EPERM),
        ("io_uring_setup", (), errno.EPERM),
    ):
        assert verdict(machine, call, *arguments, gpu=True, mps=mps) == error, (call, arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_network_needs(machine: str) -> None:
    for call, arguments, error in (
        ("socket", (socket.AF_INET, socket.SOCK_STREAM, 6), ALLOWED),
        ("socket", (socket.AF_INET6, socket.SOCK_DGRAM, 17), ALLOWED),
        ("socket", (socket.AF_INET, socket.SOCK_RAW, 17), errno.EACCES),
        ("socket", (socket.AF_INET, socket.SOCK_STREAM, 262), errno.EACCES),
        *[("socket", (family, socket.SOCK_STREAM), errno.EACCES) for family in (1, 16, 17, 38, 40)],
        ("connect", (), ALLOWED),
        ("sendto", (5, 1, 9, 0, 1 << 40), ALLOWED),
        ("sendmmsg", (), ALLOWED),  # the resolver's
        ("socketpair", (socket.AF_UNIX, socket.SOCK_DGRAM), errno.EACCES),
    ):
        assert verdict(machine, call, *arguments, network=True) == error, (call, arguments)


PROGRAM = """
import ctypes, json, os, sys
from opbox_service.worker.confine import Bounds, confine
bounds, calls = json.loads(sys.argv[1])
confine(Bounds(**bounds))
libc = ctypes.CDLL(None, use_errno=True)
def error(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return ctypes.get_errno() if done < 0 else 0
print(json.dumps([error(*call) for call in calls]))
"""


def errors(folder: Path, calls: list[list[int]], **further: bool) -> list[int]:
    bounds = {**asdict(bounds_of(folder, gpu=False)), **further}
    command = [sys.executable, "-c", PROGRAM, json.dumps([bounds, calls])]
    done: list[int] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return done


@needs_seccomp
def test_a_confined_process_is_refused_them(tmp_path: Path) -> None:
    """Every one, by the kernel of this machine; the arguments are such as lead to another error where it is not."""
    numbers = NUMBERS[platform.machine()]
    names = [name for group in REFUSED.values() for name in group.split() if name in numbers]
    assert errors(tmp_path, [[numbers[name], -1, -1, -1, -1, -1] for name in names]) == [errno.EPERM] * len(names)
    later = [[LAST + 1, -1], [0x40000000 | numbers["socket"], -1], [numbers["clone3"], 0, 0]]
    assert errors(tmp_path, later) == [errno.ENOSYS] * 3
    sockets = [[numbers["socket"], family, socket.SOCK_DGRAM, 0] for family in (1, 2, 10, 16, 17, 38, 40)]
    assert errors(tmp_path, sockets) == [errno.EACCES] * len(sockets)


@needs_seccomp
def test_the_setting_leaves_them(tmp_path: Path) -> None:
    numbers = NUMBERS[platform.machine()]
    calls = [[numbers["socket"], socket.AF_UNIX, socket.SOCK_DGRAM, 0], [numbers["keyctl"], -1]]
    assert errors(tmp_path, calls, seccomp=False) == [0, errno.EOPNOTSUPP]


ORDINARY_CODE = """
import json, sys
from opbox_service.worker.confine import Bounds, confine
(bounds,) = json.loads(sys.argv[1])
confine(Bounds(**bounds))
import asyncio, multiprocessing, os, socket, sqlite3, subprocess, tempfile, threading
import numpy as np, scipy.linalg

here = bounds["folder"]
tempfile.tempdir = here
assert np.allclose(scipy.linalg.inv(np.eye(300) * 2), np.eye(300) / 2)
print(*[socket.getaddrinfo("127.0.0.1", 80)[0][4][1], socket.gethostname() != ""])

def answer(end):
    end.send(os.getpid())

ours, theirs = multiprocessing.get_context("fork").Pipe()
child = multiprocessing.get_context("fork").Process(target=answer, args=(theirs,))
child.start()
assert ours.recv() == child.pid
child.join()
threads = [threading.Thread(target=print, args=("thread",)) for _ in range(3)]
for thread in threads:
    thread.start()
    thread.join()

async def talk():
    pairs = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
    pairs[0][1].write(b"word\\n")
    process = await asyncio.create_subprocess_exec("/bin/echo", "child", stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    return (await pairs[1][0].readline()) + said

print(asyncio.run(talk()))
with tempfile.TemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
    file.write(b"x")
    sqlite3.connect(os.path.join(folder, "base")).execute("create table words (word)")
assert os.memfd_create("mine") > 0
print(subprocess.run(["sh", "-c", "echo shell | cat"], capture_output=True, text=True).stdout)
"""


@needs_seccomp
def test_ordinary_code_goes_on(tmp_path: Path) -> None:
    arguments = json.dumps([asdict(bounds_of(tmp_path, gpu=False))])
    done = subprocess.run([sys.executable, "-c", ORDINARY_CODE, arguments], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["80", "True", *["thread"] * 3, r"b'word\nchild\n'", "shell"], done.stderr


CONNECTED = """
import fcntl, json, os, socket, sys
from opbox_service.worker.confine import Bounds, confine, keep_apart
bounds, fd = json.loads(sys.argv[1])
number = keep_apart(fd, 256)
confine(Bounds(**{**bounds, "open_files": 256}), number)
connection, pair = socket.socket(fileno=number), socket.socketpair()

def error(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0

with open("/dev/null") as file:
    socket.send_fds(connection, [b"word"], [file.fileno()])
errors = [error(lambda: socket.send_fds(pair[0], [b"word"], [0])),
          error(lambda: os.dup2(pair[0].fileno(), number)),
          error(lambda: fcntl.fcntl(pair[0], fcntl.F_DUPFD, number))]
copy = os.dup(number)
errors.append(error(lambda: socket.send_fds(socket.socket(fileno=copy), [b"word"], [0])))
connection.close()
opened = []
while not error(lambda: opened.append(os.dup(0))):
    pass
print(json.dumps([number, max(opened) < number, errors]))
"""


@needs_seccomp
def test_descriptors_go_over_the_connection_alone(tmp_path: Path) -> None:
    """No other socket gets its number, not even when it is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        arguments = json.dumps([asdict(bounds_of(tmp_path, gpu=False)), theirs.fileno()])
        command = [sys.executable, "-c", CONNECTED, arguments]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        assert json.loads(done.stdout) == [256, True, [errno.EPERM, errno.EBADF, errno.EINVAL, errno.EPERM]]
        word, fds, _, _ = socket.recv_fds(ours, 100, 1)
        assert (word, len(fds)) == (b"word", 1)
        os.close(fds[0])
