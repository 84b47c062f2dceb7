"""HttpTransport: calls to a server over HTTP, by an httpx client.

By default the connections are LeanTransport's. A program may bring a client of its own, for what only httpx has:
HTTP/2, client certificates, event hooks, proxies of other kinds, a MockTransport in tests.
"""

from __future__ import annotations

import copy
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np

from opbox_protocol import zstd
from opbox_protocol.errors import AuthenticationError, MXNetError, NotReadyError, TransportError
from opbox_protocol.transport import Reply

from . import address
from .call_numbers import CallNumbers
from .exchange import OutgoingCall, Request, exchange
from .forks import AfterFork
from .gateway import Gateway
from .http_failures import Attempted, failure
from .http_messages import ReadReply, Received, decompressed, encode_call, read_reply
from .lean_transport import CHUNKS, LeanTransport, WholeBody
from .proxies import proxy_for
from .repeated_calls import Attempts, again
from .trace_context import traced

__all__ = ["Chunks", "HttpTransport", "ServerAddress"]

SMALL = 1 << 16
"""Bodies up to this many bytes are handed to a client of the program's own in one piece."""
PIECE = 1 << 18
"""Bytes of a larger body to hand over at a time: httpcore copies what is left of a piece after every write."""
KEPT_URLS = 64
"""Number of URLs to keep parsed."""


class ServerAddress:
    """A server's address, with the token and the times that calls there have.

    Args:
        url: "http://host:port" or "https://…".
        token: the bearer token, or None.
        timeout: seconds to wait for an answer; by default OPBOX_TIMEOUT or 600.
        patience: seconds to try again; by default OPBOX_PATIENCE or 30.

    Raises:
        MXNetError: the address is not one, or the token has other characters than ASCII's.
    """

    def __init__(self, url: str, token: str | None, timeout: float | None, patience: float | None) -> None:
        parts = address.split(url)
        assert parts.hostname is not None
        self.name = address.whole(url)
        self.tls = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if self.tls else 80)
        self.netloc = parts.netloc.rpartition("@")[2]
        self.base = f"{parts.scheme}://{self.netloc}{parts.path.rstrip('/')}"
        self.headers = {"Accept": "application/octet-stream"}
        self.token: str | None = None
        self.use_token(token)
        self.timeout = timeout if timeout is not None else float(os.environ.get("OPBOX_TIMEOUT", "600"))
        self.patience = patience if patience is not None else float(os.environ.get("OPBOX_PATIENCE", "30"))

    def use_token(self, token: str | None) -> None:
        """Send this token from now on."""
        if token is not None and token.lower().startswith("bearer "):
            raise MXNetError("OPBOX_TOKEN: expected the token alone, got 'Bearer ' before it: leave that out")
        if token is not None and token != token.strip():
            raise MXNetError("OPBOX_TOKEN: expected the token alone, got spaces or a line's end beside it: drop them")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise MXNetError("OPBOX_TOKEN: expected printable ASCII characters, got others")
        self.token = token
        if token:
            self.headers = {**self.headers, "Authorization": f"Bearer {token}"}


class HttpTransport(AfterFork):
    """A server reached by HTTP.

    Args:
        url: "http://host:port" or "https://…".
        token: the bearer token, or None.
        timeout: seconds to wait for an answer; by default OPBOX_TIMEOUT or 600.
        patience: seconds to try again when the server restarts (it answers 503 and Retry-After, or nothing listens
            where it did before), or the connection breaks; by default OPBOX_PATIENCE or 30.
        read_token: asked for another token when the server refuses this one, as after its restart.
        http: a client of the program's own, which the program closes; by default connections of opbox's own.

    A proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) is used for servers on other machines.

    Raises:
        MXNetError: the address is not one.
        TypeError: `http` is no httpx.Client.

    Example:
        >>> HttpTransport("http://127.0.0.1:8000", token="…").call("GET", "/v2").header["name"]
    """

    in_process = False
    connections = 2

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float | None = None,
        read_token: Callable[[], str | None] | None = None,
        patience: float | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__()
        if http is not None and not isinstance(http, httpx.Client):
            wanted = "; opbox.aio takes an AsyncClient" if isinstance(http, httpx.AsyncClient) else ""
            raise TypeError(f"http: expected an httpx.Client, got {type(http).__name__}{wanted}")
        self._server = server = ServerAddress(url, token, timeout, patience)
        self.address = server.name
        self._read_token = read_token
        self._proxy = ""
        self._client = http
        self._lean: LeanTransport | None = None
        if http is None:
            proxy = proxy_for("https" if server.tls else "http", server.host, server.port)
            self._proxy = "" if proxy is None else str(proxy)
            tls = ssl.create_default_context() if server.tls else None
            self._lean = LeanTransport(server.host, server.port, server.timeout, tls, proxy)
        self._urls: dict[str, httpx.URL] = {}
        self._answered: float | None = None
        self._numbers = CallNumbers()
        self._gateway = Gateway()
        self._lock = threading.Lock()
        self._closed = False
        self._of_parent = False
        self.requests = 0

    def __repr__(self) -> str:
        return f"<HttpTransport {self.address}>"

    def call(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> Reply:
        """Make one call; see `Transport`. Safe to call from several threads, each on a connection of its own.

        While the server restarts, or the connection breaks, it tries again: up to `patience` seconds, and not for a
        DELETE, as what that ends is gone with the server. A session's calls have numbers, so that they run once.
        """
        return self.exchange(method, path, *encode_call(header, tensors), read_reply)

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], chunks: Sequence[Any], read: ReadReply
    ) -> Reply:
        """Make a call whose body is written already, and that `read` reads the answer of; else as `call`.

        Args:
            method, path: of its route.
            headers, chunks: of the body, and its pieces.
            read: returns the reply or the server's error, as `read_reply`.
        """
        token, renewed = self._server.token, False
        attempts = Attempts(method, path, self._server.patience, self._numbers, gateway_met=self._gateway.met)
        try:
            while True:
                try:
                    return self._call(method, path, headers, chunks, read, attempts)
                except AuthenticationError:
                    if renewed or not self._has_another_token(token):
                        raise
                    renewed = True
                except (NotReadyError, TransportError) as error:
                    pause = attempts.pause(error, reached=self._answered is not None)
                    if pause is None:
                        raise
                    time.sleep(pause)
        finally:
            attempts.end()

    def become_childs(self) -> None:
        """Forget the parent's connections after a fork; open new ones."""
        self._lock = threading.Lock()
        self._numbers = CallNumbers()
        self._of_parent = self._client is not None
        if self._lean is not None:
            self._lean.become_childs()

    def another(self) -> HttpTransport:
        """Return another transport to the same server, with connections of its own; a client is shared."""
        other = copy.copy(self)
        other._lean = copy.copy(self._lean)
        other.become_childs()
        other._of_parent = self._of_parent
        return other

    def near(self, path: str) -> None:
        """Return None: the server has the session."""

    def _has_another_token(self, refused: str | None) -> bool:
        """Return whether there is a token other than the one that was refused, by now."""
        with self._lock:
            if self._server.token == refused and self._read_token is not None:
                fresh = self._read_token()
                if fresh:
                    self._server.use_token(fresh)
            return self._server.token != refused

    def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        chunks: Sequence[Any],
        read: ReadReply,
        attempts: Attempts,
    ) -> Reply:
        if self._closed:
            raise TransportError(f"{self.address}: the connection was closed; connect again")
        server = self._server
        call = OutgoingCall(
            method, path, traced(server.headers), headers, chunks, attempts, server.timeout, self.address
        )
        steps = exchange(call, self._gateway, self._numbers, partial(self._read, read))
        request = next(steps)
        while True:
            received = self._round_trip(request, attempts)
            try:
                request = steps.send(received)
            except StopIteration as end:
                reply: Reply = end.value
                return reply

    def _round_trip(self, request: Request, attempts: Attempts) -> Received:
        """Send a request and read its answer."""
        with self._lock:
            self.requests += 1
        try:
            response = self._send(request.method, request.path, request.headers, request.chunks)
        except httpx.HTTPError as error:
            raise failure(error, self._attempted(attempts)) from error
        try:
            if isinstance(response.stream, WholeBody):
                body = response.stream.whole()
                came = len(body)
                if response.headers.get("Content-Encoding") == zstd.CODING:
                    body = decompressed(body)
            else:
                body = _read(response)
                came = response.num_bytes_downloaded
        except httpx.TimeoutException as error:
            raise failure(error, self._attempted(attempts)) from error
        except httpx.HTTPError as error:
            lost = f"{self.address}: the answer to {request.method} {request.path} was broken off"
            raise again(TransportError(lost)) from error
        return Received(response.status_code, response.reason_phrase, response.headers, body, came)

    def _read(self, read: ReadReply, received: Received, request: Request) -> Reply | MXNetError:
        """Return the server's reply, or its error."""
        reached = self._answered is not None
        place = request.method, request.path, request.sent
        reply = read(received, self.address, *place, tls=self._server.tls, reached=reached)
        self._answered = time.monotonic()
        return reply

    def _send(self, method: str, path: str, headers: dict[str, str], chunks: Sequence[Any]) -> httpx.Response:
        """Send a request; the answer's body is not read yet."""
        url = self._urls.get(path)
        if url is None:
            if len(self._urls) >= KEPT_URLS:
                self._urls.clear()
            url = self._urls[path] = httpx.URL(self._server.base + path)
        if self._lean is not None:
            headers["Host"] = self._server.netloc
            if not chunks and method in ("POST", "PUT"):
                headers["Content-Length"] = "0"
            request = httpx.Request(
                method, url, headers=headers, stream=httpx.ByteStream(b""), extensions={CHUNKS: chunks}
            )
            return self._lean.handle_request(request)
        assert self._client is not None
        if self._of_parent:
            raise MXNetError(
                f"http: expected an httpx.Client of this process ({os.getpid()}), got one of the process that it was "
                "forked from: call connect here, with a client of its own"
            )
        if self._client.is_closed:
            raise TransportError(f"{self.address}: the httpx.Client was closed; connect again, with an open one")
        timeout = httpx.Timeout(self._server.timeout, connect=self._client.timeout.connect)
        content = Chunks(chunks) if chunks else None
        return self._client.send(
            self._client.build_request(method, url, headers=headers, content=content, timeout=timeout), stream=True
        )

    def _attempted(self, attempts: Attempts) -> Attempted:
        server = self._server
        return Attempted(self.address, attempts.begun, self._answered, server.timeout, server.tls, self._proxy)

    def close(self) -> None:
        """Close the connections that are idle; those in use close when they are done."""
        self._closed = True
        if self._lean is not None:
            self._lean.close()


class Chunks:
    """A body in pieces, which may be read more than once: httpx reads it again for a redirect.

    Args:
        chunks: buffers.
    """

    def __init__(self, chunks: Sequence[Any]) -> None:
        small = sum(map(len, chunks)) <= SMALL
        self._pieces = [b"".join(chunks)] if small else [memoryview(chunk).cast("B") for chunk in chunks]

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._pieces:
            for at in range(0, len(chunk), PIECE):
                yield chunk[at : at + PIECE]


def _read(response: httpx.Response) -> Any:
    """The body of an answer, in one buffer."""
    try:
        length = response.headers.get("Content-Length", "")
        if not length.isdecimal() or "Content-Encoding" in response.headers:
            return bytearray(response.read())
        body, at = np.empty(int(length), np.uint8), 0
        for part in response.iter_bytes():
            if at + len(part) > len(body):
                break
            body[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        if at != len(body):
            raise httpx.RemoteProtocolError(f"expected {len(body)} bytes, got {at}", request=response.request)
        return body
    finally:
        response.close()
