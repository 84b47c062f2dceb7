"""Bytes in, bytes out, around an engine: reads a request's body, makes the call, lays out the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol import wire
from opbox_protocol.errors import LimitError, error_to_json

from .engine import Answer, Call, Engine, Rest
from .settings import Scope, Settings

__all__ = ["Framed", "Laid", "limits_of", "serve"]

TENSOR_ROUTES = ("/forward", "/backward", "/commands")


@dataclass(frozen=True, slots=True)
class Framed:
    """A call as it came: its body not yet read.

    Attributes:
        header_length: bytes of the JSON part; None when all of the body is JSON.
        binary: whether the answer's tensors may travel as bytes.
    """

    method: str
    path: str
    owner: str
    scopes: frozenset[Scope]
    body: memoryview | bytes
    header_length: int | None
    binary: bool


@dataclass(frozen=True, slots=True)
class Laid:
    """An answer as it goes: `head`, then `buffers`; valid while its receiver runs.

    Attributes:
        header_length: what HEADER_LENGTH announces; None when all of it is JSON.
        commands: how many commands were run or accepted.
        problem: the error that it tells, when that is not the caller's own (for the log).
    """

    status: int
    head: bytes
    buffers: list[memoryview]
    header_length: int | None = None
    commands: int = 0
    problem: BaseException | None = None

    @property
    def size(self) -> int:
        return wire.frame_size(self.head, self.buffers)

    def write_to(self, view: memoryview) -> None:
        """Write the head and the buffers one after the other."""
        at = len(self.head)
        view[:at] = self.head
        for buffer in self.buffers:
            # numpy copies without the interpreter's lock; a memoryview's assignment holds it.
            np.copyto(np.frombuffer(view[at : at + len(buffer)], np.uint8), np.frombuffer(buffer, np.uint8))
            at += len(buffer)


Send: TypeAlias = "Callable[[Laid], None]"


def limits_of(settings: Settings) -> wire.Limits:
    """What the frame reader refuses."""
    return wire.Limits(
        header_bytes=settings.max_header_bytes,
        tensor_bytes=min(settings.max_body_bytes, settings.max_elements * 8),
        tensors=settings.max_tensors,
        rank=settings.max_rank,
        json_depth=settings.max_json_depth,
    )


def serve(engine: Engine, framed: Framed, limits: wire.Limits, send: Send) -> Rest:
    """Make a call; `send` gets the answer, by this thread or another. What is returned is left to do (Engine.begin)."""

    def done(answer: Answer | BaseException) -> None:
        send(_laid(answer, framed))

    try:
        header, tensors = _read(framed, limits)
    except Exception as error:
        done(error)
        return None
    return engine.begin(Call(framed.method, framed.path, header, tensors, framed.owner, framed.scopes), done)


def _read(framed: Framed, limits: wire.Limits) -> tuple[dict[str, Any], dict[str, Any]]:
    if not len(framed.body):
        return {}, {}
    length = len(framed.body) if framed.header_length is None else framed.header_length
    if framed.header_length is not None and length > limits.header_bytes:
        raise LimitError(f"header: expected at most {limits.header_bytes} bytes, got {length}")
    if framed.header_length is None:
        # All of it is JSON, numbers included: the body's own limit holds.
        limits = wire.Limits(length, limits.tensor_bytes, limits.tensors, limits.rank, limits.json_depth)
    frame = wire.decode(framed.body, framed.header_length, limits=limits)
    return frame.header, frame.tensors


def _laid(answer: Answer | BaseException, framed: Framed) -> Laid:
    try:
        if isinstance(answer, BaseException):
            status, told = error_to_json(answer)
            problem = answer if status == 500 else None
            return Laid(status, _json(told), [], problem=problem)
        if answer.tensors and framed.binary:
            head, buffers = wire.encode(answer.header, answer.tensors)
            return Laid(answer.status, head, buffers, len(head), answer.commands)
        told = answer.header
        if answer.tensors or (framed.path.endswith(TENSOR_ROUTES) and answer.status == 200):
            told = wire.plain_json(told, answer.tensors)
        return Laid(answer.status, _json(told), [], None, answer.commands)
    except Exception as error:
        status, told = error_to_json(error)
        return Laid(status, _json(told), [], problem=error if status == 500 else None)


def _json(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace")
