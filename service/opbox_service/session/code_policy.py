"""Policy for code that sessions upload: whether it is accepted, and who watches it run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opbox_protocol.errors import ConflictError

from ..commands import TypedCommand, name_of

__all__ = ["UNWATCHED", "CodePolicy", "Watcher"]


class Watcher(Protocol):
    """Learns which command runs, so that a supervisor outside can end one that never returns."""

    def began(self, brings_code: bool) -> None:
        """A command begins."""

    def ended(self) -> None:
        """It has ended."""


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """See the module.

    Attributes:
        watcher: learns of each command.
        accepts_code: whether sessions may upload code.
    """

    watcher: Watcher | None = None
    accepts_code: bool = True

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


UNWATCHED = CodePolicy()
"""Code is accepted, and nobody watches."""
