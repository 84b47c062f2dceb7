"""Placing: opens a session on the node that the controller chooses, and tells the client the node's URL."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from opbox_protocol.errors import BadRequestError, EncodingError, LimitError, NotReadyError, QuotaError
from opbox_protocol.wire import HEADER_LENGTH

from ..documents import Refused, SessionWish, Waiting
from .answers import WholeAnswer, ask
from .heads import RequestHead

if TYPE_CHECKING:
    from .server import ClusterGateway

__all__ = ["AFTER", "MAX_BODY", "open_session"]

MAX_BODY = 1 << 16
"""Maximum bytes of a request for a session."""
MAX_WAIT_S = 300.0
"""Seconds for which a request waits in the controller's queue before it is answered 503."""
MAX_NODES = 4
"""Nodes that are asked for the session, one after the other, where they refuse it or are not reached."""
MAX_ID = 64
AFTER = "Opbox-After"
"""The HTTP header with the id of a lost session that the new one goes on from."""


async def open_session(
    gateway: ClusterGateway, head: RequestHead, body: bytes, owner: str, client: bytes
) -> WholeAnswer:
    """Open a session.

    Args:
        gateway: which is asked.
        head, body: of the request.
        owner: whose session it will be.
        client: address of the client.

    Returns:
        The node's answer, with `url` and `node` in it.

    Raises:
        BadRequestError: the body is no JSON object.
        QuotaError: the owner has all that the quota allows.
        NotReadyError: no node has a place.
    """
    wanted, is_framed = _document(head, body)
    wish_id = secrets.token_hex(16)
    avoid: list[str] = []
    after = head.value(AFTER.lower().encode()).decode("latin-1")[:MAX_ID]
    device = _device(wanted)
    last: WholeAnswer | None = None
    for _ in range(MAX_NODES):
        try:
            wish = SessionWish(wish_id, owner, device, after=after, avoid=tuple(avoid))
            place = await _place(gateway, wish)
        except (QuotaError, NotReadyError):
            if last is not None:
                return last
            raise
        sent = dict(wanted)
        if sent.get("device") == "gpu" and not sent.get("devices"):
            sent["device"] = place.device
        text = json.dumps(sent, ensure_ascii=False).encode() if sent != wanted else body
        try:
            answer = await ask(gateway.pool(place.url), _with_length(head, len(text), is_framed), text, client)
        except OSError:
            avoid.append(place.node)
            continue
        if answer.status == 201:
            answer, opened = _with_place(answer, place)
            if after and opened:
                await gateway.move(after, opened, owner)
            return answer
        if answer.status not in (429, 503):
            return answer
        last = answer
        avoid.append(place.node)
    if last is not None:
        return last
    raise _patient(f"nodes {', '.join(map(repr, avoid))}: expected an answer, got no connection: try again", 1)


class _NodePlace(NamedTuple):
    """Where the controller wants a session."""

    node: str
    url: str
    device: str


async def _place(gateway: ClusterGateway, wish: SessionWish) -> _NodePlace:
    """A place, waited for in the controller's queue."""
    until = asyncio.get_running_loop().time() + MAX_WAIT_S
    while True:
        outcome = await gateway.place(wish)
        if isinstance(outcome, Refused):
            raise (QuotaError if outcome.status == 429 else NotReadyError)(outcome.reason)
        if not isinstance(outcome, Waiting):
            return _NodePlace(outcome.node, outcome.url, outcome.device)
        if wish.avoid or asyncio.get_running_loop().time() + outcome.retry_s > until:
            raise _patient(outcome.reason, outcome.retry_s)
        await asyncio.sleep(outcome.retry_s)


def _patient(sentence: str, retry_s: float) -> NotReadyError:
    error = NotReadyError(sentence)
    error.retry_after = retry_s
    return error


def _document(head: RequestHead, body: bytes) -> tuple[dict[str, Any], bool]:
    """The JSON object of the body, and whether the body is a frame."""
    if len(body) > MAX_BODY:
        raise LimitError(f"body: expected at most {MAX_BODY} bytes for a new session, got more: send its options alone")
    if head.value(b"content-encoding") not in (b"", b"identity"):
        raise EncodingError("Content-Encoding: expected none for a new session, got one: send the body as it is")
    length = head.value(HEADER_LENGTH.lower().encode())
    if length and not (length.isdigit() and int(length[:10]) == len(body)):
        raise BadRequestError(f"{HEADER_LENGTH}: expected the body's {len(body)} bytes, as no tensors open a session")
    try:
        wanted = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise BadRequestError("body: expected a JSON object, got malformed JSON") from None
    if not isinstance(wanted, dict):
        raise BadRequestError(f"body: expected a JSON object, got {type(wanted).__name__}")
    return wanted, bool(length)


def _device(wanted: dict[str, Any]) -> str:
    """The device to ask the controller for; what is no device is the node's to refuse."""
    devices = wanted.get("devices")
    first = devices[0] if isinstance(devices, list) and devices else wanted.get("device")
    return first if isinstance(first, str) and first and len(first) <= 32 else "cpu"


def _with_length(head: RequestHead, length: int, is_framed: bool) -> RequestHead:
    """The request's head for a body of so many bytes, whose answer is not compressed."""
    name = HEADER_LENGTH.lower().encode()
    dropped = (b"content-length", b"accept-encoding", b"expect", name)
    headers = [pair for pair in head.headers if pair[0] not in dropped]
    headers += [(b"content-length", b"%d" % length), *([(name, b"%d" % length)] if is_framed else [])]
    return RequestHead(
        head.method,
        head.path,
        head.target,
        headers,
        length,
        True,
        False,
        head.forwarded_for,
        head.authorization,
        head.call,
    )


def _with_place(answer: WholeAnswer, place: _NodePlace) -> tuple[WholeAnswer, str]:
    """The node's answer, with its URL, and the session's id."""
    try:
        document = json.loads(answer.body)
    except ValueError:
        return answer, ""
    document |= {"url": place.url, "node": place.node}
    text = json.dumps(document, ensure_ascii=False).encode()
    name = HEADER_LENGTH.lower().encode()
    headers = [
        (key, b"%d" % len(text) if key.lower() in (b"content-length", name) else value) for key, value in answer.headers
    ]
    return WholeAnswer(answer.status, headers, text), str(document.get("id", ""))
