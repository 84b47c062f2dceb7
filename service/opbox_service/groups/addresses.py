"""The address on which this engine's groups listen, and the network that their peers must be in."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
from dataclasses import dataclass
from typing import TypeAlias

from opbox_protocol.errors import BadRequestError, QuotaError, UnsupportedError
from opbox_protocol.excerpt import excerpt

__all__ = ["GroupAddress"]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
ANY_PORT = range(1)


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where groups listen, and whom they connect to.

    Attributes:
        host: the engine's own address.
        network: that peers must be in; nothing outside of it is ever connected to.
        ports: where groups may listen; 0 is any free one.
    """

    host: str
    network: Network
    ports: range = ANY_PORT

    @classmethod
    def of(cls, setting: str, ports: str = "") -> GroupAddress:
        """Read the settings `group_host`, as 10.0.0.5/24, and `group_ports`, as 20000-20099 or empty.

        Raises:
            UnsupportedError: it is empty.
            ValueError: it is no address with the length of its network, or the ports are no two numbers.
        """
        if not setting:
            raise UnsupportedError(
                "join_group: expected a server whose sessions may exchange arrays with those of others, got one where "
                "they may not: start it with OPBOX_GROUP_HOST=ADDRESS/LENGTH, its own address and their network"
            )
        interface = ipaddress.ip_interface(setting)
        first, _, last = ports.partition("-")
        listening = range(int(first), int(last) + 1) if ports else ANY_PORT
        return cls(str(interface.ip), interface.network, listening)

    def listen(self, backlog: int) -> socket.socket:
        """A socket that listens on one of the ports.

        Raises:
            BadRequestError: the address is none of this machine's, or its ports may not be opened.
            QuotaError: all ports are taken.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        for port in random.sample(self.ports, len(self.ports)):
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                if port:  # connections of an earlier group that came by this port may be there still
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((self.host, port))
                listener.listen(backlog)
                return listener
            except OSError as error:
                listener.close()
                if port and error.errno == errno.EADDRINUSE:
                    continue
                raise BadRequestError(
                    "join_group: expected OPBOX_GROUP_HOST to be an address of this machine where ports may be opened, "
                    f"got {self.host} ({error.strerror})"
                ) from error
        raise QuotaError(
            f"join_group: expected a free port of OPBOX_GROUP_PORTS={self.ports[0]}-{self.ports[-1]}, got none: name "
            "more, as each session takes one from join_group until its ranks are connected"
        )

    def shown(self, port: int) -> str:
        """The address with a port, as other ranks get it."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def peer(self, address: str) -> tuple[str, int]:
        """The host and port of another rank.

        Raises:
            BadRequestError: it is no address with a port, or outside of the network.
        """
        host, _, port = address.rpartition(":")
        try:
            ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            number = int(port) if port.isdecimal() else 0
        except ValueError:
            ip, number = None, 0
        if ip is None or not 0 < number < 1 << 16:
            raise BadRequestError(
                f"addresses: expected IP addresses with ports, as 10.0.0.5:4000, got {excerpt(address)}"
            )
        if ip not in self.network:
            raise BadRequestError(
                f"addresses: expected some in {self.network}, which this server's OPBOX_GROUP_HOST names, got "
                f"{excerpt(address)}"
            )
        return str(ip), number
