"""What an attack is, and the list of all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.attack.box import Box

__all__ = ["Attack", "Outcome", "attacks"]

MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What an attack came to.

    Attributes:
        safe: whether the server did what was expected.
        says: what happened, in a few words.
    """

    safe: bool
    says: str


@dataclass(frozen=True)
class Attack:
    """An attack on a server of its own.

    Attributes:
        name: for `--only`.
        does: what it sends, in a few words.
        run: sends it; by HTTP and sockets alone, so that it also runs against an older server.
        settings: of the server, beyond those of `Box`.
        grows: bytes that the API process may grow by during the attack.
        keeps: bytes of growth that it may keep, five seconds after it.
        waits_s: the longest that the other user may wait for a step.
        limit_s: seconds until the attack is given up.
    """

    name: str
    does: str
    run: Callable[[Box], Outcome]
    settings: Mapping[str, str] = field(default_factory=dict)
    grows: int = 128 * MIB
    keeps: int = 32 * MIB
    waits_s: float = 1.0
    limit_s: float = 60.0


def attacks() -> list[Attack]:
    """Every attack: those in the ATTACKS of this package's modules."""
    package = importlib.import_module("tests.attack")
    modules = (
        importlib.import_module(f"tests.attack.{module.name}") for module in pkgutil.iter_modules(package.__path__)
    )
    return [attack for module in modules for attack in getattr(module, "ATTACKS", ())]
