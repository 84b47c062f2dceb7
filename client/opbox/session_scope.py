"""The code of an operator that runs on the engine: while it does, `mx.nd` means the engine's own arrays.

The engine sets a session of its own around that code. It has the array methods of `session.Session` (new_id, record,
fetch, describe, free, …), and `on(device)` for the one on another device; `record` returns when the command has run.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .session import Session

__all__ = ["EngineSession", "SessionScope", "running"]

_thread = threading.local()


class EngineSession(Protocol):
    """The session that the engine sets around an operator's code."""

    def on(self, device: str) -> Session:
        """The session of the same code on another device."""


def running() -> EngineSession | None:
    """The engine's session for the operator that this thread runs; None outside of any."""
    session: EngineSession | None = getattr(_thread, "session", None)
    return session


class SessionScope:
    """`with SessionScope(local, context):` new arrays of this thread are made in `local`, by default on `context`.

    Args:
        local: the engine's session.
        context: its device.
    """

    __slots__ = ("_before", "_context", "_local")

    def __init__(self, local: Any, context: Any) -> None:
        self._local = local
        self._context = context
        self._before: Any = None

    def __enter__(self) -> SessionScope:
        self._before = running()
        _thread.session = self._local
        self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._context.__exit__()
        _thread.session = self._before
