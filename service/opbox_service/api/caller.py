"""Identity: who a caller is, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..owner_terms import Scope
from ..routes.route import require_scope

__all__ = ["Identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller; its sessions belong to `owner`.

    Attributes:
        expires: when its token ceases to be one; None for never.
        weight: the token's own for its owner; None where it states none.
    """

    owner: str
    scopes: frozenset[Scope]
    expires: datetime | None = None
    weight: float | None = None

    def require(self, *scopes: Scope) -> None:
        """ForbiddenError unless the token has one of the scopes."""
        require_scope(self.scopes, *scopes)
