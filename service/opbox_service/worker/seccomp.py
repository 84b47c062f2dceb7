"""Seccomp: a process gives up system calls, with all that it starts; no privilege needed.

    refuse(connection=512)

The kernel asks a small program of its own kind (BPF) about each call: it reads the processor's kind, the call's number
and its arguments, not what pointers lead to. So a message with descriptors in it cannot be told from another one: only
the connection may send such messages (`sendmsg`), and its number is one that the process cannot give to another socket.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .system_calls import LAST, NUMBERS, REFUSED

__all__ = ["available", "program", "refuse"]

_SET_MODE_FILTER, _SPEC_ALLOW = 1, 1 << 2
_GET_ACTION_AVAIL = 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _AND, _EQUAL, _GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_WHOLE = 0xFFFFFFFF
_NEW_NAMESPACES = 0x7E020000
"""Flags of clone: namespaces of users, processes, mounts, networks, …"""
_INJECTING = (0x5412, 0x541C)
"""Requests of ioctl that type on a terminal for somebody else: TIOCSTI, TIOCLINUX."""
_NOTIFY = 1026
"""The request of fcntl that watches a folder: F_NOTIFY."""
_QUERY = 0xFFFFFFFF
_SCHEDULING = ("sched_setparam", "sched_setscheduler", "sched_setattr")
_IO_PROCESS = 1
"""IOPRIO_WHO_PROCESS: a process, not a group or a user."""
_BUFFERS = (7, 32)
"""Options of sockets: the size of the buffer for what is sent."""
_KIND = 0xF
"""Bits of a socket's type without its flags."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Condition:
    """What an argument of a call must be.

    Attributes:
        argument: its place.
        values: those that are allowed, or refused.
        refused: which of both.
        mask: bits that count.
        high: of the argument's upper half.
    """

    argument: int
    values: tuple[int, ...]
    refused: bool = False
    mask: int = _WHOLE
    high: bool = False

    def code(self, error: int) -> Iterator[bytes]:
        """Go on after this code where the condition holds; return the error where it does not."""
        yield _step(_LOAD, _ARGUMENTS_AT + 8 * self.argument + 4 * self.high)
        yield _step(_AND, self.mask)
        if self.refused:
            for value in self.values:
                yield _step(_EQUAL, value, 0, 1)
                yield _step(_RETURN, _ERRNO | error)
            return
        for place, value in enumerate(self.values):
            yield _step(_EQUAL, value, len(self.values) - place, 0)
        yield _step(_RETURN, _ERRNO | error)


_ITSELF = _Condition(0, (0,))
"""The process that a call is about: the caller."""
_NULL = (_Condition(4, (0,)), _Condition(4, (0,), high=True))
"""The address of sendto: none."""


def available() -> bool:
    """Return whether the kernel has seccomp's filters, and the processor is of a kind that is known here."""
    number = _SECCOMP.get(platform.machine()) if sys.platform == "linux" else None
    action = ctypes.c_uint32(_ERRNO)
    return number is not None and _libc.syscall(number, _GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0


def refuse(connection: int | None, *, network: bool = False, gpu: bool = False, mps: bool = False) -> bool:
    """Refuse this thread, and all that comes of it, the calls that no operator needs; False where there is no seccomp.

    The process must have given up gaining privileges (PR_SET_NO_NEW_PRIVS).

    Args:
        connection: the one descriptor that may send descriptors; above all numbers that the process can have else.
        network: whether it may use TCP and UDP.
        gpu: whether CUDA is to start, which listens on a socket and ends with an error where it may not.
        mps: whether CUDA talks to a server on this machine, by sockets and descriptors.

    Raises:
        OSError: the kernel has seccomp and does not take the program.
    """
    if not available():
        return False
    text = program(platform.machine(), connection, network=network, gpu=gpu, mps=mps)
    code = ctypes.create_string_buffer(text, len(text))
    header = struct.pack("@HP", len(text) // 8, ctypes.addressof(code))
    # Kernels before 5.16 would slow the processor down for a process with such a program, which is to protect others
    # in one address space from each other; here there are none.
    for flags in (_SPEC_ALLOW, 0):
        if _libc.syscall(_SECCOMP[platform.machine()], _SET_MODE_FILTER, flags, header) == 0:
            return True
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def program(machine: str, connection: int | None, *, network: bool, gpu: bool, mps: bool) -> bytes:
    """The program for a kind of processor; see `refuse`."""
    numbers = NUMBERS[machine]
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        # A program for 32 bits has other numbers for its calls, and gets none of them.
        _step(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _step(_RETURN, _ERRNO | errno.ENOSYS),
        _step(_LOAD, _NUMBER_AT),
        # Calls of later kernels, and those of x32, which are numbered from 2^30 on.
        _step(_GREATER, LAST, 0, 1),
        _step(_RETURN, _ERRNO | errno.ENOSYS),
        # The C library then uses clone, whose flags can be seen.
        *_refused(numbers["clone3"], errno.ENOSYS),
    ]
    for names in REFUSED.values():
        for name in names.split():
            if name in numbers:
                steps += _refused(numbers[name], errno.EPERM)
    conditions = {
        "clone": (errno.EPERM, [_Condition(0, (0,), mask=_NEW_NAMESPACES)]),
        "personality": (errno.EPERM, [_Condition(0, (_QUERY,))]),
        # Its own limits, priority and turns, not those of a process of the same user.
        **dict.fromkeys(("prlimit64", *_SCHEDULING), (errno.EPERM, [_ITSELF])),
        "setpriority": (errno.EPERM, [_Condition(0, (os.PRIO_PROCESS,)), _Condition(1, (0,))]),
        "ioprio_set": (errno.EPERM, [_Condition(0, (_IO_PROCESS,)), _Condition(1, (0,))]),
        "fcntl": (errno.EPERM, [_Condition(1, (_NOTIFY,), refused=True)]),
        "ioctl": (errno.EPERM, [_Condition(1, _INJECTING, refused=True)]),
        # A pair of datagram sockets could be sent on to any path.
        "socketpair": (errno.EACCES, [_Condition(1, (socket.SOCK_STREAM, socket.SOCK_SEQPACKET), mask=_KIND)]),
        **_of_sockets(connection, network=network, gpu=gpu, mps=mps),
    }
    for name, (error, checks) in conditions.items():
        code = [step for check in checks for step in check.code(error)]
        code.append(_step(_RETURN, _ALLOW) if checks else _step(_RETURN, _ERRNO | error))
        steps += [_step(_EQUAL, numbers[name], 0, len(code)), *code]
    steps.append(_step(_RETURN, _ALLOW))
    return b"".join(steps)


def _of_sockets(
    connection: int | None, *, network: bool, gpu: bool, mps: bool
) -> dict[str, tuple[int, list[_Condition]]]:
    """The calls that make, name and reach sockets, with their error and the conditions under which they are allowed.

    Without a condition a call is refused.
    """
    families = [*((socket.AF_INET, socket.AF_INET6) if network else ()), *((socket.AF_UNIX,) if gpu else ())]
    kinds = {
        *((socket.SOCK_STREAM, socket.SOCK_DGRAM) if network or mps else ()),
        *((socket.SOCK_STREAM, socket.SOCK_SEQPACKET) if gpu else ()),
    }
    protocols = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
    closed: tuple[int, list[_Condition]] = (errno.EACCES, [])
    calls = {"socket": closed}
    if families:
        checks = [_Condition(0, _ints(families)), _Condition(1, _ints(kinds), mask=_KIND), _Condition(2, protocols)]
        calls["socket"] = errno.EACCES, checks
    if not network and not gpu:
        calls |= {"bind": closed, "listen": closed}
        calls["setsockopt"] = errno.EPERM, [_Condition(2, _BUFFERS, refused=True)]
    if not network and not mps:
        calls |= dict.fromkeys(("connect", "accept", "accept4"), closed)
        calls["sendto"] = errno.EACCES, list(_NULL)
        calls["sendmsg"] = errno.EPERM, [] if connection is None else [_Condition(0, (connection,))]
        calls["sendmmsg"] = errno.EPERM, []
    return calls


def _ints(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(map(int, values)))


def _refused(number: int, error: int) -> list[bytes]:
    return [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | error)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
