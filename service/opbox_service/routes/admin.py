"""Sessions of every owner, for tokens with the scope `admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from ..carriers import Answer, Call, Done
from .sessions import UNREACHED, SessionState

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["EndedSession", "OwnedSession", "OwnedSessionList", "end_session", "sessions"]


class OwnedSession(SessionState):
    """A session as it is now, and whose it is."""

    owner: str = Field(description="The name of the token that made it.")
    checkpoint: str | None = Field(
        default=None, description="The checkpoint that a stop of the server saves; null where it asked for none."
    )


class OwnedSessionList(BaseModel):
    """Sessions of every owner."""

    sessions: list[OwnedSession]
    unreached: list[str] | None = Field(default=None, description=UNREACHED)


class EndedSession(BaseModel):
    """The session that was ended, and whose it was."""

    ended: str
    owner: str


def sessions(engine: Engine, call: Call, done: Done) -> None:
    """Everybody's sessions: owner, device, age, memory, executors and steps of each."""
    rows = [
        {**session.json(), "owner": session.owner, "checkpoint": session.checkpoint}
        for session in engine.sessions.all()
    ]
    done(Answer({"sessions": rows}))


def end_session(engine: Engine, call: Call, done: Done) -> None:
    """End somebody's session; its owner's next call is answered 410, and all that it held is freed."""
    id = call.parameters["id"]
    done(Answer({"ended": id, "owner": engine.sessions.end(id)}))
