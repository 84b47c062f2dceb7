"""Heads of requests and answers: read strictly, and written anew without what is of one connection alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import httptools

from opbox_protocol.errors import BadRequestError, LimitError

from ...api.request_heads import check_single

__all__ = ["AnswerHead", "RequestHead", "read_answer_head", "read_request_head"]

MAX_HEADERS = 256
"""Maximum number of headers of a request; the nodes have the same limit."""
_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer upgrade transfer-encoding x-forwarded-for".split(),
)
"""Headers of one connection, which are not passed on; X-Forwarded-For is written anew."""
_PLAIN = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[A-Za-z0-9/._~%?&=:@!$'()*+,;-]*) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9_-]+: ?(?:[!-~](?:[ \t!-~]*[!-~])?)?\r\n)+\r\n"
)
"""Heads as clients write them. What the parser takes beyond that is read by the parser, at twice the cost."""
_FIELD = re.compile(rb"\r\n([A-Za-z0-9_-]+): ?([^\r\n]*)")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\n(?:connection|keep-alive):[^\r\n]*(?=\r\n)", re.IGNORECASE)
_TRANSFER = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*(?=\r\n)", re.IGNORECASE)


@dataclass(slots=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: such as "POST".
        path: without the query, with its %-escapes decoded.
        target: as it came.
        headers: those to pass on, with names in lower case.
        length: bytes of the body; None for one in chunks.
        keep_alive: whether the connection is to stay open.
        http10: whether the client speaks HTTP/1.0.
        forwarded_for: the X-Forwarded-For that came.
        authorization, call, header_length: values of those headers; b"" where there are none.
    """

    method: str
    path: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    length: int | None
    keep_alive: bool
    http10: bool
    forwarded_for: bytes
    authorization: bytes
    call: bytes

    def value(self, name: bytes) -> bytes:
        """The value of a header, b"" where there is none."""
        return next((value for key, value in self.headers if key == name), b"")

    def for_node(self, client: bytes) -> bytes:
        """The head to send to a node.

        Args:
            client: address of the client.
        """
        lines = [b"%b %b HTTP/1.1\r\n" % (self.method.encode(), self.target)]
        lines += [b"%b: %b\r\n" % pair for pair in self.headers]
        if self.length is None:
            lines.append(b"transfer-encoding: chunked\r\n")
        through = b"%b, %b" % (self.forwarded_for, client) if self.forwarded_for else client
        lines.append(b"x-forwarded-for: %b\r\n\r\n" % through)
        return b"".join(lines)


class _Parsed:
    """What the parser calls."""

    __slots__ = ("headers", "url", "whole")

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.whole = False

    def on_url(self, url: bytes) -> None:
        """Called for a part of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called at the head's end."""
        self.whole = True


def _read_plain(head: bytes) -> RequestHead | None:
    """A request's head of the plain form; None for another, which may be a good one too."""
    match = _PLAIN.fullmatch(head)
    if match is None:
        return None
    headers = [(name.lower(), value) for name, value in _FIELD.findall(head, match.end(2))]
    values = dict(headers)
    if len(values) != len(headers) or len(headers) > MAX_HEADERS:
        return None
    if values.get(b"connection", b"").lower() == b"keep-alive":
        del values[b"connection"]
        headers = [pair for pair in headers if pair[0] != b"connection"]
    length = values.get(b"content-length", b"0")
    if not _HOP.isdisjoint(values) or not length.isdigit() or len(length) > 18:
        return None
    method, target = match.groups()
    path = target.partition(b"?")[0]
    return RequestHead(
        method.decode(),
        unquote_to_bytes(path).decode("utf-8", "replace") if b"%" in path else path.decode(),
        target,
        headers,
        int(length),
        True,
        False,
        b"",
        values.get(b"authorization", b""),
        values.get(b"opbox-call", b""),
    )


def read_request_head(head: bytes) -> RequestHead:
    """Read a request's head.

    Args:
        head: with the empty line at its end.

    Raises:
        BadRequestError: it is no head of HTTP/1.1.
        LimitError: it has too many headers.
    """
    plain = _read_plain(head)
    if plain is not None:
        return plain
    parsed = _Parsed()
    parser = httptools.HttpRequestParser(parsed)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # served by HTTP/1.1, as a server may
    except httptools.HttpParserError as error:
        raise BadRequestError(f"request: expected HTTP/1.1, got something else: {error}") from None
    if not parsed.whole:
        raise BadRequestError("request: expected the head of a request of HTTP/1.1, got something else")
    if len(parsed.headers) > MAX_HEADERS:
        raise LimitError(f"headers: expected at most {MAX_HEADERS} of a request, got more: send fewer")
    check_single(parsed.headers)
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise BadRequestError(f"request: expected HTTP/1.1, got HTTP/{version}")
    method = parser.get_method().decode("latin-1")
    target = parsed.url
    if (
        method == "CONNECT"
        or not (target.startswith(b"/") or (target == b"*" and method == "OPTIONS"))
        or b"#" in target
    ):
        raise BadRequestError("request: expected a path such as /v2/health/live, got another target")
    headers, dropped = [], set(_HOP)
    length: int | None = 0
    values: dict[bytes, bytes] = {}
    for name, value in parsed.headers:
        if name == b"connection":
            dropped |= {word.strip().lower() for word in value.split(b",")} - {b"authorization", b"host"}
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise BadRequestError(f"Transfer-Encoding: expected chunked, got {value[:40].decode('latin-1')!r}")
            length = None
        elif name == b"x-forwarded-for" and name in values:
            value = values[name] + b", " + value
        values[name] = value
    headers = [pair for pair in parsed.headers if pair[0] not in dropped]
    path = target.partition(b"?")[0]
    if b"%" in path:
        path = unquote_to_bytes(path)
    return RequestHead(
        method,
        path.decode("utf-8", "replace"),
        target,
        headers,
        length,
        version == "1.1" and b"close" not in dropped,
        version != "1.1",
        values.get(b"x-forwarded-for", b""),
        values.get(b"authorization", b""),
        values.get(b"opbox-call", b""),
    )


@dataclass(slots=True)
class AnswerHead:
    """The head of a node's answer.

    Attributes:
        status: its status.
        length: bytes of the body; None for one in chunks, -1 for one that ends with the connection.
        keep_alive: whether the connection may be used again.
        text: to pass on, without what is of this connection, and without the empty line at its end.
    """

    status: int
    length: int | None
    keep_alive: bool
    text: bytes

    def for_client(self, *, keep_alive: bool, http10: bool) -> bytes:
        """The head to send to the client."""
        text = self.text
        if http10:
            text = _TRANSFER.sub(b"", text)
        return text + (b"\r\n" if keep_alive else b"connection: close\r\n\r\n")


def read_answer_head(head: bytes, method: str) -> AnswerHead:
    """Read an answer's head.

    Args:
        head: with the empty line at its end.
        method: of the request.

    Raises:
        BadRequestError: it is no head of HTTP/1.1.
    """
    match = _STATUS.match(head)
    if match is None:
        raise BadRequestError("answer: expected HTTP/1.1, got something else")
    status = int(match[2])
    keep_alive = match[1] == b"1"
    length_header = _LENGTH.search(head)
    length: int | None = -1
    if status < 200 or status in (204, 304) or method == "HEAD":
        length = 0
    elif length_header is not None:
        length = int(length_header[1])
    elif _CHUNKED.search(head):
        length = None
    text = head[:-2]
    connection = _CONNECTION.search(head)
    if connection is not None:
        keep_alive = keep_alive and b"close" not in head.lower()[connection.start() : connection.end()]
        text = _CONNECTION.sub(b"", head)[:-2]
    return AnswerHead(status, length, keep_alive and length != -1, text)
