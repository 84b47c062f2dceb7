"""What a process for code may send, kind by kind: fields, types, sizes. Its session's code may send anything."""

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

Check: TypeAlias = "Callable[[Any], bool]"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _is_sentence(value: Any) -> bool:
    return type(value) is str and len(value) <= REASON


def _is_list(value: Any) -> bool:
    return type(value) is list


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
        max_bytes: of a message's JSON.
        fields: that it must have, and optional: that it may have.
        body: whether further bytes may follow.
    """

    max_bytes: int
    fields: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)
    body: bool = False


_STORED: Mapping[str, Check] = {"id": _is_count, "owner": _is_text, "name": _is_text}
FORMS: Mapping[str, Form] = {
    "ready": Form(1 << 10, {"pid": _is_count}),
    "failed": Form(1 << 14, {"reason": _is_sentence}),
    "answer": Form(
        1 << 15,  # an exception for the log takes half of that at the most
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
        {"problem": _is_list},
        body=True,
    ),
    "drop": Form(1 << 16, {"segments": _are_counts, "sessions": _is_count, "times": _is_list}),
    "account": Form(1 << 14, {"ended": _is_list, "memory": _is_list}),
    "reported": Form(messages.LARGEST, {"rows": _is_list}),
    "uploaded": Form(1 << 16, {"owner": _is_text, "session": _is_text, "rows": _is_list, "more": _is_count}),
    "save": Form(1 << 12, _STORED, {"generation": _is_count_or_none}),
    "load": Form(1 << 12, _STORED, {"takes": _is_flag}),
    "rows": Form(messages.LARGEST, {**_STORED, "do": _is_text}, {"size": _is_count, "blocks": _are_names}),
    "graph": Form(1 << 12, {**_STORED, "do": _is_text}),
}


def read(message: bytes) -> tuple[dict[str, Any], memoryview]:
    """Read a message of a process for code: its object, and the bytes behind that.

    Args:
        message: as it came.

    Raises:
        ValueError: it has another form.
    """
    length = int.from_bytes(message[:4], "little")
    if 4 + length > len(message):
        raise ValueError(f"expected {length} bytes of JSON, got {len(message) - 4}")
    check_bounds(memoryview(message)[4 : 4 + length])
    header, inline = messages.read(message)
    if type(header) is not dict:
        raise ValueError(f"expected an object, got {header!r:.80}")
    kind = header.get("kind")
    form = FORMS.get(kind) if type(kind) is str else None
    if form is None or type(kind) is not str:
        raise ValueError(f"unexpected message {kind!r:.80}")
    if length > form.max_bytes:
        raise ValueError(f"{kind}: expected at most {form.max_bytes} bytes, got {length}")
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
