"""HTTP proxies: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in the environment, in either case of letters."""

from __future__ import annotations

import base64
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from opbox_protocol.errors import MXNetError, TransportError

__all__ = ["Proxy", "proxy_for"]

ANSWER_BYTES = 1 << 16
"""Maximum bytes to read of an answer to CONNECT."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is spoken to in plain HTTP.

    Attributes:
        host, port: where it listens.
        authorization: the value of Proxy-Authorization, or None.
    """

    host: str
    port: int
    authorization: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that a request to the proxy needs: Proxy-Authorization, or none."""
        return {"Proxy-Authorization": self.authorization} if self.authorization else {}

    def tunnel(self, connection: socket.socket, host: str, port: int) -> None:
        """Have it connect to a server; what is sent on `connection` from then on reaches that.

        Raises:
            TransportError: it refused.
            OSError: it broke off.
        """
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", *(f"{k}: {v}" for k, v in self.headers.items()), "", ""]
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        answer = b""
        while b"\r\n\r\n" not in answer:
            # Byte by byte: what comes behind the answer belongs to the server.
            byte = connection.recv(1)
            if not byte or len(answer) > ANSWER_BYTES:
                raise ConnectionResetError("the proxy broke off its answer to CONNECT")
            answer += byte
        status = answer.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise TransportError(f"{host}: expected its proxy {self} to open a connection, got {status!r}")


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy that the environment names for a server; None to connect to it directly, as to this machine itself.

    Args:
        scheme: "http" or "https".
        host, port: the server.

    Raises:
        MXNetError: the environment names one that is not spoken to in plain HTTP.

    Example:
        >>> os.environ["HTTP_PROXY"] = "http://proxy:3128"
        >>> proxy_for("http", "gpu-box", 8000)
        Proxy(host='proxy', port=3128, authorization=None)
    """
    if _is_loopback(host):  # from a proxy, that would be another machine
        return None
    # 20 ms to import, and only with a server elsewhere. The stubs lack the second.
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass_environment(f"{host}:{port}", proxies):
        return None
    parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
    try:
        number = parts.port
    except ValueError:
        number = 0
    if parts.scheme != "http" or not parts.hostname or number == 0:
        named = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise MXNetError(f"{scheme.upper()}_PROXY: expected an address like http://proxy:3128, got {named!r}")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, number or 80, authorization)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
