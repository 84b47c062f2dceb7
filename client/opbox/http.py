"""HttpTransport: the wire format over kept-alive connections.

Bodies are written from the arrays themselves and read into one buffer that the result arrays are views of: no copies on
the way. `http.client` reads the answers' heads; requests are written in one piece. A general client costs 1.5 to 4
times as much for a call of 4 to 256 KiB (`benchmarks/http_clients.py`), and a training step is one call.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opbox_protocol import routes, wire
from opbox_protocol.batch_json import batch_json
from opbox_protocol.errors import (
    AuthenticationError,
    MXNetError,
    NotReadyError,
    TransportError,
    WireError,
    error_from_json,
)
from opbox_protocol.transport import Reply

from . import address
from .call_numbers import CallNumbers
from .forks import AfterFork
from .not_opbox import HttpAnswer, is_of_opbox, is_refusal_of_opbox, not_opbox_error
from .proxies import proxy_for
from .request_writing import send_request

__all__ = ["HttpTransport"]

RESTART_S = 0.25
"""Seconds between two attempts to reach a server that was reachable before."""
FIRST_TRIES = 3
"""Number of attempts to get an answer of a server that has never answered."""
IDLE_S = 15.0
"""Seconds after which an unused connection is replaced: what is between may have forgotten it."""
PROBE_S, PROBES = 5, 4
"""Seconds between two probes of a connection that has been silent for IDLE_S, and their number."""
UNACKNOWLEDGED_S = 45
"""Seconds in which the other side has to acknowledge what was sent to it."""
LONGEST_PAUSE_S = 10.0
"""Maximum seconds to wait for a server's Retry-After."""
UNANSWERED = (408, 502, 504, 524)
"""Statuses of gateways that got no answer of the server's, or did not wait for it."""
SHOWN_BYTES = 4096
"""Number of bytes to read of an answer that is not opbox's, to describe it."""


class HttpTransport(AfterFork):
    """A server reached by HTTP.

    Args:
        url: "http://host:port" or "https://…".
        token: the bearer token, or None.
        timeout: seconds to wait for an answer; by default OPBOX_TIMEOUT or 600.
        patience: seconds to try again when the server restarts (it answers 503 and Retry-After, or nothing listens
            where it did before), or the connection breaks; by default OPBOX_PATIENCE or 30.
        read_token: asked for another token when the server refuses this one, as after its restart.

    A proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) is used for servers on other machines.

    Raises:
        MXNetError: the address is not one.

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
    ) -> None:
        super().__init__()
        parts = address.split(url)
        assert parts.hostname is not None
        self.address = address.whole(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._proxy = proxy_for(parts.scheme, self._host, self._port)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "Accept": "application/octet-stream"}
        self._token: str | None = None
        self._use_token(token)
        self._read_token = read_token
        if self._proxy is not None and self._tls is None:
            self._prefix = f"http://{self._headers['Host']}{self._prefix}"
            self._headers |= self._proxy.headers
        self._timeout = timeout if timeout is not None else float(os.environ.get("OPBOX_TIMEOUT", "600"))
        self._patience = patience if patience is not None else float(os.environ.get("OPBOX_PATIENCE", "30"))
        self._answered: float | None = None
        self._numbers = CallNumbers()
        self._idle: list[tuple[socket.socket, float]] = []
        self._lock = threading.Lock()
        self._closed = False
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
        once = method == "POST" and path.startswith(routes.SESSIONS)
        number = self._numbers.begin() if once else None
        token, renewed, begun = self._token, False, time.monotonic()
        tries, until = 0, 0.0
        try:
            while True:
                attempt = time.monotonic()
                try:
                    return self._call(method, path, header, tensors, begun, number)
                except AuthenticationError:
                    if renewed or not self._has_another_token(token):
                        raise
                    renewed = True
                except (NotReadyError, TransportError) as error:
                    now = time.monotonic()
                    if not tries or now - attempt > self._patience:  # a connection that lived is a new beginning
                        until = now + self._patience
                    pause = self._pause(error, method, tries)
                    if pause is None or now + pause > until:
                        self._note_tries(error, tries, now - begun)
                        raise
                    if number is not None and isinstance(error, NotReadyError):  # an answer: the next is another's
                        self._numbers.end(number)
                        number = self._numbers.begin()
                    tries += 1
                    time.sleep(pause)
        finally:
            if number is not None:
                self._numbers.end(number)

    def _pause(self, error: MXNetError, method: str, tries: int) -> float | None:
        """Seconds until the next attempt, after so many that failed; None to give up."""
        pause, broken = error.retry_after, isinstance(error, TransportError) and error.retry_after == 0
        if pause is None or self._patience <= 0:
            return None
        if method == "DELETE" and (tries or not broken):
            return None
        if self._answered is None and broken and tries + 1 >= FIRST_TRIES:
            return None
        return max(pause, min(RESTART_S, 0.01 * 2**tries)) if tries else pause

    def _note_tries(self, error: MXNetError, tries: int, seconds: float) -> None:
        """Add to the error of a broken connection how often the call was tried."""
        if tries and isinstance(error, TransportError) and self._answered is not None and error.retry_after == 0:
            error.reword(f"{error}; tried {tries + 1} times in {seconds:.0f} s (OPBOX_PATIENCE sets how long to try)")

    def become_childs(self) -> None:
        """Forget the parent's connections after a fork; open new ones."""
        self._lock = threading.Lock()
        self._idle = []
        self._numbers = CallNumbers()

    def another(self) -> HttpTransport:
        """Return another transport to the same server, with connections of its own."""
        other = copy.copy(self)
        other.become_childs()
        return other

    def runs_at_once(self, path: str, seq: int) -> bool:
        """Return False: the server runs batches."""
        return False

    def _use_token(self, token: str | None) -> None:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise MXNetError("OPBOX_TOKEN: expected printable ASCII characters, got others")
        self._token = token
        if token:
            self._headers = {**self._headers, "Authorization": f"Bearer {token}"}

    def _has_another_token(self, refused: str | None) -> bool:
        """Return whether there is a token other than the one that was refused, by now."""
        with self._lock:
            if self._token == refused and self._read_token is not None:
                fresh = self._read_token()
                if fresh:
                    self._use_token(fresh)
            return self._token != refused

    def _call(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any] | None,
        tensors: Mapping[str, np.ndarray[Any, Any]] | None,
        begun: float,
        number: int | None,
    ) -> Reply:
        headers = {**self._headers, **self._numbers.headers(number)}
        chunks: list[Any] = []
        if header is not None or tensors is not None:
            head, buffers = wire.encode(header or {}, tensors or {}, "inputs", batch_json)
            headers["Content-Type"] = "application/octet-stream"
            headers[wire.HEADER_LENGTH] = str(len(head))
            headers["Content-Length"] = str(wire.frame_size(head, buffers))
            chunks = [head, *buffers]
        elif method in ("POST", "PUT"):
            headers["Content-Length"] = "0"
        with self._lock:
            self.requests += 1
        response, connection = self._exchange(method, self._prefix + path, headers, chunks, begun)
        try:
            body = _read(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if _timed_out(error):
                raise self._unreachable(error, begun) from error
            raise _again(TransportError(f"{self.address}: the answer to {method} {path} was broken off")) from error
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        if self._tls is None and _asks_for_tls(response, body):
            raise TransportError(f"{self.address}: what listens there speaks TLS: its URL begins with https://")
        reply = _reply(response, body, method, path)
        if reply is None:
            sent = int(headers.get("Content-Length", "0"))
            answer = _http_answer(response, body, self.address, method, path, sent)
            foreign = not_opbox_error(answer)
            if answer.status in (429, 503):
                raise _with_pause(foreign, response)
            raise _again(foreign) if answer.status in UNANSWERED and self._answered is not None else foreign
        self._answered = time.monotonic()
        if isinstance(reply, MXNetError):
            raise reply
        return reply

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], chunks: list[Any], begun: float
    ) -> tuple[http.client.HTTPResponse, socket.socket]:
        """Send a request and read the answer's head; once more when a kept connection proves closed."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        while True:
            connection, fresh = self._connection(begun)
            response = http.client.HTTPResponse(connection, method=method)
            try:
                sent = send_request(connection, [head, *chunks], self._timeout)
                response.begin()
                response.will_close |= not sent
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                response.close()
                connection.close()
                if fresh:
                    raise self._unreachable(error, begun) from error
            except (OSError, http.client.HTTPException) as error:
                response.close()
                connection.close()
                raise self._unreachable(error, begun) from error
            else:
                return response, connection

    def _unreachable(self, error: Exception, begun: float) -> MXNetError:
        """The error for a call, `begun` at that time, that no answer came to."""
        now = time.monotonic()
        if _timed_out(error):
            return TransportError(
                f"{self.address}: no answer within {self._timeout:g} s; OPBOX_TIMEOUT sets how long to wait"
            )
        if self._proxy is not None:
            way = f"not reached through the proxy {self._proxy}: {error!r}"
            unreached = TransportError(f"{self.address}: {way}; NO_PROXY names hosts that need none")
            return unreached if self._answered is None else _again(unreached)
        if isinstance(error, ConnectionRefusedError):
            if self._answered is None:
                return TransportError(f"{self.address}: nothing listens there; start a server with `opbox serve`")
            refused = TransportError(
                f"{self.address}: the server there, whose last answer came {now - self._answered:.0f} s ago, has ended "
                f"or was killed: nothing has listened for {now - begun:.0f} s (OPBOX_PATIENCE sets how long to try); "
                "start it again with `opbox serve`"
            )
            refused.retry_after = RESTART_S
            return refused
        if isinstance(error, ssl.SSLCertVerificationError):
            return TransportError(
                f"{self.address}: its certificate is not trusted ({error.verify_message}): SSL_CERT_FILE names the "
                "file of an authority of your own"
            )
        if isinstance(error, ssl.SSLError):
            return TransportError(
                f"{self.address}: what answers there does not speak TLS as expected ({error.reason}): is its URL http://?"
            )
        if (
            self._tls is None
            and self._answered is None
            and isinstance(error, ConnectionResetError | http.client.BadStatusLine)
        ):
            return _again(
                TransportError(
                    f"{self.address}: the server there closed the connection without an answer in HTTP: if it speaks "
                    "TLS, its URL begins with https://"
                )
            )
        if isinstance(error, socket.gaierror):
            return TransportError(f"{self.address}: the host's name is not known here ({error.strerror})")
        if self._answered is None:
            return TransportError(f"{self.address}: the server could not be reached: {error!r}")
        if isinstance(error, http.client.HTTPException | ConnectionError):
            return _again(
                TransportError(
                    f"{self.address}: the server there, whose last answer came {now - self._answered:.0f} s ago, "
                    f"closed the connection {now - begun:.1f} s into this call, without an answer: it has ended or was "
                    "killed, or a gateway in between gave up"
                )
            )
        return _again(TransportError(f"{self.address}: the server could not be reached: {error!r}"))

    def _connection(self, begun: float) -> tuple[socket.socket, bool]:
        """A connection that is idle, or a fresh one; and whether it is fresh."""
        with self._lock:
            if self._closed:
                raise TransportError(f"{self.address}: the connection was closed; connect again")
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < IDLE_S:
                    return connection, False
                connection.close()
        try:
            return self._connect(), True
        except OSError as error:
            raise self._unreachable(error, begun) from error

    def _connect(self) -> socket.socket:
        proxy = self._proxy
        place = (self._host, self._port) if proxy is None else (proxy.host, proxy.port)
        connection = socket.create_connection(place, timeout=self._timeout)
        try:
            _set_options(connection)
            if self._tls is None:
                return connection
            if proxy is not None:
                proxy.tunnel(connection, self._host, self._port)
            return self._tls.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close the connections that are idle; those in use close when they are done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


def _set_options(connection: socket.socket) -> None:
    """Send small requests at once, and notice that the other side is gone though nothing says so."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", int(IDLE_S)),
        ("TCP_KEEPALIVE", int(IDLE_S)),  # macOS's name of the same
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _again(error: MXNetError) -> MXNetError:
    """The error of a call that may be made again at once."""
    error.retry_after = 0.0
    return error


def _timed_out(error: Exception) -> bool:
    """Return whether OPBOX_TIMEOUT has passed; a connection that the system gave up has an errno."""
    return isinstance(error, TimeoutError) and error.errno is None


def _read(response: http.client.HTTPResponse) -> Any:
    """The body, in one buffer that arrays may view."""
    length = response.length
    if length is None:
        return bytearray(response.read())
    body = np.empty(length, np.uint8)
    view, done = body.data, 0
    while done < length:
        got = response.readinto(view[done:])
        if not got:
            raise http.client.IncompleteRead(bytes(view[:done]), length - done)
        done += got
    response.read()  # lets the connection be used again
    return body


def _asks_for_tls(response: http.client.HTTPResponse, body: Any) -> bool:
    """True if this is the page of a port for TLS, as nginx and others answer plain HTTP with: a 400 that is no JSON."""
    if response.status != 400 or response.getheader("Content-Type", "").startswith("application/json"):
        return False
    words = bytes(body[:1000]).lower()
    return b"https" in words or b"ssl-enabled" in words


def _reply(response: http.client.HTTPResponse, body: Any, method: str, path: str) -> Reply | MXNetError | None:
    """Return opbox's reply or error; None for an answer of another server."""
    length = response.getheader(wire.HEADER_LENGTH, "")
    length = length if length.isdecimal() else ""
    if not length and not response.getheader("Content-Type", "").startswith("application/json"):
        return None
    if response.status >= 400:
        try:
            error = json.loads(bytes(body[: int(length)]) if length else bytes(body))
        except ValueError:
            return None
        return _with_pause(error_from_json(response.status, error), response) if is_refusal_of_opbox(error) else None
    if response.status >= 300:
        return None
    if length:
        frame = wire.decode(body, int(length), key="outputs")
        return Reply(frame.header, frame.tensors)
    try:
        # Tensors are asked for as bytes, so there are none; an operator of the catalogue has other "outputs".
        header = wire.decode_header(body)
    except WireError:
        return None
    return Reply(header) if is_of_opbox(method, path, header) else None


def _with_pause(refusal: MXNetError, response: http.client.HTTPResponse) -> MXNetError:
    """The error, with the seconds after which a server, or a gateway, wants the call to be made again."""
    pause = response.getheader("Retry-After", "")
    if pause.isdecimal():
        refusal.retry_after = min(float(pause), LONGEST_PAUSE_S)
    return refusal


def _http_answer(
    response: http.client.HTTPResponse, body: Any, address: str, method: str, path: str, sent: int
) -> HttpAnswer:
    return HttpAnswer(
        address,
        method,
        path,
        sent,
        response.status,
        response.reason,
        response.getheader("Content-Type", ""),
        response.getheader("Location", ""),
        bytes(body[:SHOWN_BYTES]),
    )
