"""The names that requests may call the server by.

A page of anybody's can be made to reach a server on its visitor's machine, by a name that is resolved anew to 127.0.0.1
(DNS rebinding). The browser sends that name as Host; a server that listens on loopback answers none but its own.
"""

from __future__ import annotations

import ipaddress
import socket

from opbox_protocol.errors import ForbiddenError

from ..settings import Settings

__all__ = ["Hosts"]


class Hosts:
    """Checks Host headers.

    Args:
        settings: `host`, which it listens on, and `allowed_hosts`.
    """

    def __init__(self, settings: Settings) -> None:
        names = [name.lower().rstrip(".") for name in settings.allowed_hosts]
        loopback = settings.host == "localhost" or (_is_address(settings.host) and _is_loopback(settings.host))
        self._any = "*" in names or (not names and not loopback)
        self._names = {*names, "localhost", settings.host.lower(), socket.gethostname().lower()}
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))
        self._known: set[bytes] = set()

    def check(self, header: bytes | None) -> None:
        """ForbiddenError when a Host header has a name that is not this server's; none at all is no browser's."""
        if self._any or header is None or header in self._known:
            return
        host = _without_port(header.decode("latin-1")).lower().rstrip(".")
        # A name can be resolved to any machine; an address is what it is.
        if not (_is_address(host) or host in self._names or host.endswith((".localhost", *self._endings))):
            raise ForbiddenError(
                f"Host: expected a name of this server's ({', '.join(sorted(self._names))}), got {host[:100]!r}: "
                "use one of these, or add it to OPBOX_ALLOWED_HOSTS"
            )
        if len(self._known) < 1000:
            self._known.add(header)


def _without_port(host: str) -> str:
    """The name or address before the port: "[::1]:8000" is "::1"."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and ":" in host else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
