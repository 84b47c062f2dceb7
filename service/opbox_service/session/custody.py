"""What a place where sessions run makes of code that they bring: whether it takes any, and who watches over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opbox_protocol.errors import ConflictError

from . import commands as c

__all__ = ["FREE", "Custody", "Watcher"]


class Watcher(Protocol):
    """Is told which command runs, so that whoever is outside can end what never returns."""

    def began(self, brings_code: bool) -> None:
        """A command begins."""

    def ended(self) -> None:
        """It has ended."""


@dataclass(frozen=True, slots=True)
class Custody:
    """See the module.

    Attributes:
        watcher: is told of each command.
        takes_code: whether sessions may bring code.
    """

    watcher: Watcher | None = None
    takes_code: bool = True

    def check(self, commands: Sequence[c.Command]) -> None:
        """ConflictError when a command brings code to where none is taken."""
        if self.takes_code:
            return
        for number, command in enumerate(commands):
            if command.scope != "run":
                raise ConflictError(
                    f"command {number} ({type(command).__name__.lower()}): expected a session with a process of its "
                    'own, got one that shares its: make a session with {"code": true}; nothing ran',
                    detail={"command": number},
                )


FREE = Custody()
"""Code is taken, and nobody watches."""
