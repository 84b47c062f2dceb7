"""An owner's last sessions, and the curves of what their programs reported."""

from __future__ import annotations

from pydantic import BaseModel, Field

from ..carriers import Answer, Call, Done
from .health import Place, books_of

__all__ = ["PastSessionList", "SessionMetrics", "history", "metrics"]


class PastSession(BaseModel):
    """A session that is open, or was."""

    id: str
    device: str
    script: str = Field(description="Name of the program that opened the session.")
    host: str = Field(description="Name of the program's machine.")
    created: float = Field(description="Seconds since 1970.")
    ended: float | None = Field(description="Seconds since 1970; null while it is open.")
    reason: str = Field(description="Why it ended.")
    steps: int = Field(description="Steps at its last report.")
    latest: dict[str, float | None] = Field(description="The values that were reported last, by name.")


class PastSessionList(BaseModel):
    """Your last sessions, the newest first."""

    sessions: list[PastSession]


class Curve(BaseModel):
    """What was reported under one name; of very many points some are left out."""

    name: str
    times: list[float] = Field(description="Seconds since 1970.")
    steps: list[int] = Field(description="Steps of the training before each point.")
    epochs: list[int | None]
    values: list[float | None] = Field(description="The values; null for a value that was not finite.")


class SessionMetrics(PastSession):
    """A session, and its curves."""

    curves: list[Curve]


def history(place: Place, call: Call, done: Done) -> None:
    """Your last sessions, open and ended, since the server started."""
    done(Answer({"sessions": books_of(place, call).history.of(call.owner)}))


def metrics(place: Place, call: Call, done: Done) -> None:
    """What a session's program has reported of its training: curves of losses and metrics."""
    done(Answer(books_of(place, call).history.metrics(call.owner, call.parameters["session"])))
