"""The address on which this engine's groups listen, and the network that their peers must be in."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TypeAlias

from opbox_protocol.errors import BadRequestError, UnsupportedError
from opbox_protocol.excerpt import excerpt

__all__ = ["GroupAddress"]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where groups listen, and whom they connect to.

    Attributes:
        host: the engine's own address.
        network: that peers must be in; nothing outside of it is ever connected to.
    """

    host: str
    network: Network

    @classmethod
    def of(cls, setting: str) -> GroupAddress:
        """Read the setting `group_host`, as 10.0.0.5/24.

        Raises:
            UnsupportedError: it is empty.
            ValueError: it is no address with the length of its network.
        """
        if not setting:
            raise UnsupportedError(
                "join_group: expected a server whose sessions may exchange arrays with those of others, got one where "
                "they may not: start it with OPBOX_GROUP_HOST=ADDRESS/LENGTH, its own address and their network"
            )
        interface = ipaddress.ip_interface(setting)
        return cls(str(interface.ip), interface.network)

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
