"""Accounts: the quotas, weight and urgency of each owner, from the settings and the tokens' file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..owner_terms import LARGER_QUOTA, OwnerTerms
from ..settings import Settings

__all__ = ["USUAL_URGENCY", "Account", "Accounts", "too_many_sessions"]

USUAL_URGENCY = 3
"""Default urgency of a request (RFC 9218, header `Priority: u=3`); greater numbers run later."""


def too_many_sessions(limit: int) -> str:
    """Return the error for an owner who asks for more than `limit` sessions."""
    if not limit:
        return f"sessions: expected none, as your quota is 0, got one: make calls without a session, or {LARGER_QUOTA}"
    return (
        f"sessions: expected at most {limit} of an owner, got one more: end one of yours (DELETE /v1/sessions/{{id}}; "
        "GET /v1/sessions lists them), or try again when one has expired"
    )


@dataclass(frozen=True, slots=True)
class Account:
    """Quota of one owner.

    Attributes:
        weight: share of a worker's time, to others'.
        urgency: of requests that state none.
        sessions: how many there may be at a time.
        session_bytes, memory_bytes: device memory of one of them, and of all on a device (0: as the device has).
        worker_seconds: of workers' time in a day; 0 for no limit.
        in_flight: requests at a time.
        buffer_bytes: of bodies and unread answers.
        checkpoints, checkpoint_bytes: how many, and of all of them.
        dataset_bytes: of stored datasets.
        model_bytes: of the files of published models.
    """

    weight: float
    urgency: int
    sessions: int
    session_bytes: int
    memory_bytes: int
    worker_seconds: float
    in_flight: int
    buffer_bytes: int
    checkpoints: int
    checkpoint_bytes: int
    dataset_bytes: int
    model_bytes: int

    def quotas(self) -> dict[str, Any]:
        """All of them by name."""
        return asdict(self)


class Accounts:
    """The accounts of a server's owners.

    Args:
        settings: what owners have who have no terms of their own.

    Attributes:
        usual: the account of those.

    Example:
        >>> accounts = Accounts(Settings())
        >>> accounts.replace({"ann": OwnerTerms(sessions=2)})
        >>> accounts.of("ann").sessions, accounts.of("bob").sessions
        (2, 32)
    """

    def __init__(self, settings: Settings) -> None:
        self.usual = Account(
            weight=1.0,
            urgency=USUAL_URGENCY,
            sessions=settings.max_sessions,
            session_bytes=settings.max_session_bytes,
            memory_bytes=settings.max_owner_bytes,
            worker_seconds=settings.max_owner_seconds,
            in_flight=settings.max_in_flight_per_owner,
            buffer_bytes=settings.max_owner_buffer_bytes,
            checkpoints=settings.max_checkpoints,
            checkpoint_bytes=settings.max_checkpoint_bytes,
            dataset_bytes=settings.max_dataset_bytes,
            model_bytes=settings.max_model_bytes,
        )
        self._own: Mapping[str, Account] = {}

    @property
    def names(self) -> list[str]:
        """The owners with terms of their own."""
        return list(self._own)

    def of(self, owner: str) -> Account:
        """An owner's account."""
        return self._own.get(owner, self.usual)

    def replace(self, terms: Mapping[str, OwnerTerms]) -> None:
        """Replace the terms of all owners by these."""
        usual = asdict(self.usual)
        # One assignment, as threads that save checkpoints ask at any time.
        self._own = {owner: Account(**{**usual, **own.model_dump(exclude_none=True)}) for owner, own in terms.items()}
