"""Policy for code that sessions upload: whether it is accepted, and who watches it run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opbox_protocol.errors import ConflictError

from ..commands import TypedCommand, name_of

__all__ = ["UNWATCHED", "CodePolicy", "Watcher"]

BRINGING = ("define", "compile")
"""Commands that bring code."""
LISTED = 100
"""Maximum number of uploads of a batch that the audit log lists one by one."""


class Watcher(Protocol):
    """Learns which command runs, so that a supervisor outside can end one that never returns."""

    def began(self, brings_code: bool) -> None:
        """A command begins."""

    def ended(self) -> None:
        """Called when the session has ended."""


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """Accepts or refuses uploaded code, and reports it.

    Attributes:
        watcher: learns of each command.
        accepts_code: whether sessions may upload code.
        on_upload: learns what a session is sent before any of it runs: the owner, the session, command and name and
            sha256 of each piece, and how many more there are.
        move: has another process take over a session whose next batch brings code; None where none does. Called with
            the session, which rests until its `stay` or `leave` is called.
    """

    watcher: Watcher | None = None
    accepts_code: bool = True
    on_upload: Callable[[str, str, list[tuple[str, str, str]], int], None] | None = None
    move: Callable[[Any], None] | None = None

    def check(self, commands: Sequence[TypedCommand]) -> None:
        """ConflictError when a command uploads code where none is accepted."""
        if self.accepts_code:
            return
        for number, command in enumerate(commands):
            if command.scope != "run":
                raise ConflictError(
                    f"command {number} ({name_of(command)}): expected a session with a process of its "
                    'own, got one that shares its: make a session with {"code": true}; nothing ran',
                    detail={"command": number},
                )

    def note_uploads(self, owner: str, session: str, commands: Sequence[TypedCommand]) -> None:
        """Report to `on_upload` what code these commands bring."""
        if self.on_upload is None or all(command.scope == "run" for command in commands):
            return
        uploads = [command for command in commands if name_of(command) in BRINGING and _text(command)]
        if uploads:
            rows = [(name_of(command), _name(command), _digest(command)) for command in uploads[:LISTED]]
            self.on_upload(owner, session, rows, len(uploads) - len(rows))


def _text(command: Any) -> Any:
    return getattr(command, "bundle", None) or getattr(command, "source", None) or getattr(command, "body", None)


def _name(command: Any) -> str:
    return str(getattr(command, "op_type", None) or getattr(command, "kernel", ""))[:100]


def _digest(command: Any) -> str:
    named = getattr(command, "sha256", None)
    return str(named or hashlib.sha256(str(_text(command)).encode(errors="replace")).hexdigest())[:80]


UNWATCHED = CodePolicy()
"""Accepts code without a supervisor, for an embedded engine."""
