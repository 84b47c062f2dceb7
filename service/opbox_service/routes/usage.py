"""Owners' use, day by day, and their quotas."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from ..carriers import Answer, Call, Done
from .health import Place, books_of

__all__ = ["OwnerUsage", "UsageList", "all_usage", "usage"]


class Quotas(BaseModel):
    """An owner's quotas, weight and urgency."""

    weight: float = Field(description="Share of a worker's time, relative to others.")
    urgency: int = Field(description="Urgency of requests without one.")
    sessions: int
    session_bytes: int = Field(description="Maximum device memory of a session.")
    memory_bytes: int = Field(description="Maximum memory of all sessions on a device; 0: all of it.")
    worker_seconds: float = Field(description="Maximum seconds of workers' time in a day (UTC); 0: no limit.")
    in_flight: int = Field(description="Maximum number of requests at a time.")
    buffer_bytes: int = Field(description="Maximum bytes of bodies and unread answers.")
    checkpoints: int
    checkpoint_bytes: int
    dataset_bytes: int = Field(description="Maximum bytes of stored datasets.")
    model_bytes: int = Field(description="Maximum bytes of the files of published models.")


class Present(BaseModel):
    """An owner's sessions, requests in flight, memory and seconds at this moment."""

    sessions: int
    in_flight: int = Field(description="Requests in flight, this one included.")
    memory_bytes: int = Field(description="Device memory of all sessions.")
    worker_seconds: float = Field(description="Today.")


class Day(BaseModel):
    """An owner's use on a day of UTC."""

    day: str = Field(description="The day, such as 2030-01-31.")
    worker_seconds: float = Field(description="Seconds that calls ran.")
    queue_seconds: float = Field(description="Seconds that calls waited for their turn.")
    runs: int = Field(description="Batches of commands, and calls without a session.")
    requests: int
    refused: int = Field(description="Requests that a quota refused.")
    received_bytes: int
    sent_bytes: int
    sessions: int = Field(description="Number of sessions opened.")
    peak_bytes: int = Field(description="Peak device memory.")
    storage_bytes: int = Field(description="Peak bytes of checkpoints, stored datasets and published models.")


class OwnerUsage(BaseModel):
    """An owner's quotas, what it has now, and what it used on the last days, the newest first."""

    owner: str
    quotas: Quotas
    now: Present
    days: list[Day]


class UsageList(BaseModel):
    """The usage of every owner who used anything."""

    owners: list[OwnerUsage]


def usage(place: Place, call: Call, done: Done) -> None:
    """Your quotas, what you have now, and what you used on each of the last 31 days."""
    books = books_of(place, call)
    days = books.usage.days(call.owner).get(call.owner, {})
    done(Answer(_described(books.json(call.owner), days)))


def all_usage(place: Place, call: Call, done: Done) -> None:
    """The usage of every owner who used anything in the last 31 days."""
    books = books_of(place, call)
    days = books.usage.days()
    done(Answer({"owners": [_described(owner, days[name]) for name, owner in books.json_of(days).items()]}))


def _described(owner: dict[str, Any], days: dict[str, Any]) -> dict[str, Any]:
    return {**owner, "days": [{"day": day, **usage.json()} for day, usage in days.items()]}
