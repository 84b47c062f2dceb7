"""Answers that no opbox server has written: by gateways, login pages and other servers at the URL.

error = not_opbox_error(answer, call)      # None where opbox answered
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import LimitError, MXNetError, TransportError

__all__ = ["HttpAnswer", "not_opbox_error", "is_of_opbox", "is_refusal_of_opbox"]

_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("POST", routes.SESSIONS): ("id",),
    ("GET", routes.SESSIONS): ("sessions",),
    ("GET", routes.OPERATORS): ("operators",),
}
"""Fields of which an answer to each call has at least one."""
_RUN = ("results", "accepted")
_COMMANDS = routes.COMMANDS.rpartition("/")[2]
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>", re.IGNORECASE)
_MAX_CHARACTERS = 80
"""Maximum number of characters of the answer's text in an error."""
_OWN_URL = "set OPBOX_URL to the server's own address, or let what stands in front of it pass this path on"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer over HTTP, and what it answers.

    Attributes:
        address: the server's URL, as the user gave it.
        method, path: of the call.
        sent: bytes of its body.
        status, reason: of the answer.
        content_type, location: its headers; "" where it has none.
        body: how its body begins.
    """

    address: str
    method: str
    path: str
    sent: int
    status: int
    reason: str
    content_type: str
    location: str
    body: bytes


def is_of_opbox(method: str, path: str, answer: Mapping[str, Any]) -> bool:
    """Return whether the JSON object that a call was answered with, and that is no error, may be opbox's."""
    if (method, path) == ("GET", routes.ABOUT):
        return answer.get("name") == "opbox"
    fields = _FIELDS.get((method, path), ())
    if method == "POST" and path.endswith(_COMMANDS):
        fields = _RUN
    return not fields or any(field in answer for field in fields)


def is_refusal_of_opbox(error: Any) -> bool:
    """Return whether what an error's body holds is the JSON object of one of opbox's."""
    return isinstance(error, dict) and isinstance(error.get("error"), str) and isinstance(error.get("type"), str)


def not_opbox_error(answer: HttpAnswer) -> MXNetError:
    """The error for an answer that is not opbox's, with the answer's status: who was asked what, and what to do."""
    sentence = (
        f"{answer.address}: {answer.method} {answer.path} was answered {answer.status} {answer.reason}".rstrip()
        + f"{_words(answer)}: {_advice(answer)}"
    )
    error = LimitError(sentence) if answer.status == 413 else TransportError(sentence)
    error.status = answer.status
    return error


def _words(answer: HttpAnswer) -> str:
    """Return a short description of the answer, from its own text."""
    text = answer.body.decode("utf-8", "replace").strip()
    title = _TITLE.search(text)
    if title is not None:
        words = f"a page “{_short(html.unescape(title[1]))}”"
    elif text and ("html" in answer.content_type or text.startswith("<")):
        words = "a page"
    else:
        words = _short(_message(text) or text)
    return f" ({words})" if words else ""


def _message(text: str) -> str:
    try:
        answer = json.loads(text)
    except ValueError:
        return ""
    return (
        next((str(answer[key]) for key in ("error", "message", "detail") if answer.get(key)), "")
        if isinstance(answer, dict)
        else ""
    )


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _MAX_CHARACTERS else f"{words[:_MAX_CHARACTERS]}…"


def _advice(answer: HttpAnswer) -> str:
    """Return what the answer means, and what to do."""
    status = answer.status
    if 300 <= status < 400:
        base = answer.location.removesuffix(answer.path) if answer.location.endswith(answer.path) else ""
        if base.startswith(("http://", "https://")):
            return f"this is a redirect and not opbox: set OPBOX_URL to {base}"
        place = f" to {_short(answer.location)}" if answer.location else ""
        return f"this is a redirect{place} and not opbox: {_OWN_URL}"
    if status in (401, 403, 407):
        return f"this is not opbox, but what stands in front of it and wants to know who asks: {_OWN_URL}"
    if status == 413:
        return (
            f"a gateway in front of the server takes no request of {answer.sent} bytes: raise its limit "
            "(client_max_body_size in nginx), or send smaller arrays"
        )
    if status == 429:
        return "a gateway in front of the server takes no more calls for now: raise its limit, or try again later"
    if status in (502, 503):
        return (
            "a gateway in front of the server cannot reach it: see whether `opbox serve` runs, and at the address "
            "where the gateway looks for it"
        )
    if status in (408, 504, 524):
        return (
            "a gateway in front of the server did not wait for its answer, and the call may have run: raise its "
            "limit (proxy_read_timeout in nginx), or do less at a time"
        )
    if status < 300:
        return f"this is not opbox, but another server or a login page: check the URL, or {_OWN_URL}"
    return "this is not opbox, or a gateway that does not pass this path on: check the URL, its port and its path"
