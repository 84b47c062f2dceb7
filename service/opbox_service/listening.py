"""The listening socket, opened by the server or by systemd, and notifications to systemd."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys

from .settings import Settings

__all__ = ["allow_open_files", "bind", "listen", "notify"]

FIRST_FD = 3
"""Number of the first descriptor that systemd passes (sd_listen_fds)."""
OTHER_FILES = 1024
"""Files that a server may need beside connections."""


def listen(settings: Settings) -> tuple[socket.socket, bool]:
    """The socket to listen on, and whether other servers may listen on the same port.

    A socket that systemd passes (`LISTEN_FDS`, `LISTEN_PID`) is taken before `host` and `port`.

    Raises:
        SystemExit: the port cannot be had, or what systemd passes is no TCP socket.
    """
    passed = int(os.environ.get("LISTEN_FDS", "0")) if os.environ.get("LISTEN_PID") == str(os.getpid()) else 0
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # they are not for the workers
    if passed:
        return _activated(passed), True
    try:
        sock = bind(settings.host, settings.port, settings.reuse_port)
    except OSError as error:
        raise SystemExit(f"opbox serve: cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    return sock, settings.reuse_port


def bind(host: str, port: int, reuse_port: bool) -> socket.socket:
    """A TCP socket that is bound to an address; OSError where it cannot be had."""
    family = socket.AF_INET
    try:
        if ipaddress.ip_address(host).version == 6:
            family = socket.AF_INET6
    except ValueError:
        family = socket.getaddrinfo(host, port)[0][0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(False)
    return sock


def _activated(number: int) -> socket.socket:
    """Return the one socket that systemd passes."""
    if number != 1:
        raise SystemExit(f"opbox serve: LISTEN_FDS: expected one socket, got {number}: use one ListenStream")
    sock = socket.socket(fileno=FIRST_FD)
    sock.set_inheritable(False)
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        raise SystemExit("opbox serve: LISTEN_FDS: expected a TCP socket: use ListenStream with an address and a port")
    return sock


def allow_open_files(connections: int) -> int:
    """Let this process have a file for each of so many connections; the number that it may have.

    Many systems allow a program 1,024 open files until it asks for more. What it needs beside connections are files
    for workers, sessions with code and their messages.
    """
    if sys.platform == "win32":
        return connections
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= connections + OTHER_FILES:
        return connections
    wanted = connections + OTHER_FILES if most == resource.RLIM_INFINITY else min(connections + OTHER_FILES, most)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        allowed = wanted
    return min(connections, max(allowed - OTHER_FILES, allowed // 2))


def notify(state: str) -> None:
    """Notify systemd of a state, `READY=1` or `STOPPING=1`, if it wants notifications (sd_notify)."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + place[1:] if place.startswith("@") else place)
        sock.send(state.encode())
