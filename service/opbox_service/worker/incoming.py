"""What a worker may send, kind by kind: fields, types, sizes. A process with a session's code may send anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..buffers import INLINE
from . import messages
from .bounded_json import check_bounds

__all__ = ["MAX_COUNT", "MAX_TEXT", "read"]

MAX_COUNT = 1 << 53
"""Largest number that every reader of JSON has exactly."""
MAX_TEXT = 512
"""Maximum number of characters of a name."""
REASON = 4000
"""Maximum number of characters of a sentence."""
ROWS = 1 << 16
"""Maximum number of rows of a list; the message's size is the narrower limit."""
PROBLEM_BYTES = 1 << 15
"""Bytes of an answer's JSON, which may have an exception for the log."""

Check: TypeAlias = "Callable[[Any], bool]"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _is_sentence(value: Any) -> bool:
    return type(value) is str and len(value) <= REASON


def _is_list(value: Any) -> bool:
    return type(value) is list and len(value) <= ROWS


def _are_counts(value: Any) -> bool:
    return _is_list(value) and all(map(_is_count, value))


def _are_names(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _is_queue(value: Any) -> bool:
    if value is None:
        return True
    if type(value) is not list or len(value) != 2:
        return False
    before, wait_s = value
    return _is_count(before) and type(wait_s) in (int, float) and 0 <= wait_s <= MAX_COUNT


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a kind of messages.

    Attributes:
        fields: that a message must have, and optional: that it may have.
        max_bytes: of its JSON.
        body: whether further bytes may follow.
    """

    fields: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)
    max_bytes: int = 1 << 14
    body: bool = False


_STORED: Mapping[str, Check] = {"id": _is_count, "owner": _is_text, "name": _is_text}
FORMS: Mapping[str, Form] = {
    "ready": Form({"pid": _is_count}),
    "failed": Form({"reason": _is_sentence}),
    "answer": Form(
        {
            "id": _is_count,
            "status": _is_count,
            "header_length": _is_count_or_none,
            "commands": _is_count,
            "size": _is_count,
            "segment": _is_count_or_none,
            "sessions": _is_count,
            "queue": _is_queue,
        },
        {"problem": _is_list, "times": _is_list},
        # Of the times of very many owners, those of a second may come with one answer.
        messages.LARGEST,
        body=True,
    ),
    "drop": Form({"segments": _are_counts, "sessions": _is_count, "times": _is_list}, max_bytes=messages.LARGEST),
    "account": Form({"ended": _is_list, "memory": _is_list}, max_bytes=messages.LARGEST),
    "reported": Form({"rows": _is_list}, max_bytes=messages.LARGEST),
    "uploaded": Form(
        {"owner": _is_text, "session": _is_text, "rows": _is_list, "more": _is_count}, max_bytes=messages.LARGEST
    ),
    "move": Form({"session": _is_text, "owner": _is_text, "device": _is_text, "bytes": _is_count}),
    "left": Form({"session": _is_text}),
    "save": Form(_STORED),
    "load": Form(_STORED),
    "rows": Form({**_STORED, "do": _is_text}, {"size": _is_count, "blocks": _are_names}, messages.LARGEST),
}
OF_CODE: Mapping[str, int] = {
    "ready": 1 << 10,
    "failed": 1 << 14,
    "answer": PROBLEM_BYTES,
    "drop": 1 << 16,
    "account": 1 << 14,
    "reported": messages.LARGEST,
    "uploaded": 1 << 16,
    "save": 1 << 12,
    "load": 1 << 12,
    "rows": messages.LARGEST,
}
"""The kinds that a process for code sends, and the maximum bytes of their JSON."""


def read(message: bytes, *, of_code: bool = False) -> tuple[dict[str, Any], memoryview]:
    """Read a worker's message: its object, and the bytes behind that.

    Args:
        message: as it came.
        of_code: whether a process for code has sent it.

    Raises:
        ValueError: it has another form.
    """
    length = int.from_bytes(message[:4], "little")
    if 4 + length > len(message):
        raise ValueError(f"expected {length} bytes of JSON, got {len(message) - 4}")
    if of_code:
        check_bounds(memoryview(message)[4 : 4 + length])
    header, inline = messages.read(message)
    if type(header) is not dict:
        raise ValueError(f"expected an object, got {header!r:.80}")
    kind = header.get("kind")
    form = FORMS.get(kind) if type(kind) is str else None
    if form is None:
        raise ValueError(f"unexpected message {kind!r:.80}")
    assert type(kind) is str
    most = OF_CODE.get(kind, -1) if of_code else form.max_bytes
    if length > most:
        what = f"at most {most} bytes" if most >= 0 else "none of a process for code"
        raise ValueError(f"{kind}: expected {what}, got {length} bytes")
    if len(inline) > (INLINE if form.body else 0):
        raise ValueError(f"{kind}: expected fewer bytes behind the object, got {len(inline)}")
    _check_fields(kind, form, header)
    return header, inline


def _check_fields(kind: str, form: Form, header: Mapping[str, Any]) -> None:
    count = 1
    for name, check in form.fields.items():
        if name not in header:
            raise ValueError(f"{kind}: expected {name}, got nothing")
        if not check(header[name]):
            raise ValueError(f"{kind}: {name}: got {header[name]!r:.80}")
        count += 1
    if len(header) == count:
        return
    for name, check in form.optional.items():
        if name in header:
            if not check(header[name]):
                raise ValueError(f"{kind}: {name}: got {header[name]!r:.80}")
            count += 1
    if len(header) != count:
        raise ValueError(f"{kind}: expected no further fields, got {sorted(map(str, header))!r:.200}")
