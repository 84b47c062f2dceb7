"""An owner's checkpoints on the server's disk: listed and deleted."""

from __future__ import annotations

from pydantic import BaseModel, Field

from opbox_protocol.errors import UnsupportedError

from ..carriers import Answer, Call, Done
from ..checkpoint_store import FileCheckpoints
from .health import Place

__all__ = ["CheckpointFile", "CheckpointList", "DeletedCheckpoint", "checkpoints", "delete"]


class CheckpointFile(BaseModel):
    """A checkpoint."""

    name: str
    bytes: int
    saved: float = Field(description="Seconds since 1970.")


class CheckpointList(BaseModel):
    """An owner's checkpoints, by name."""

    checkpoints: list[CheckpointFile]


class DeletedCheckpoint(BaseModel):
    """The name of the checkpoint that was deleted."""

    deleted: str


def checkpoints(place: Place, call: Call, done: Done) -> None:
    """Your checkpoints, which `checkpoint` commands saved."""
    rows = _store(place).listed(call.owner)
    done(Answer({"checkpoints": [{"name": name, "bytes": size, "saved": saved} for name, size, saved in rows]}))


def delete(place: Place, call: Call, done: Done) -> None:
    """Delete a checkpoint of yours."""
    name = call.parameters["checkpoint"]
    _store(place).delete(call.owner, name)
    done(Answer({"deleted": name}))


def _store(place: Place) -> FileCheckpoints:
    if place.checkpoints is None:
        raise UnsupportedError(
            "checkpoints: expected a server with a directory for them: set OPBOX_STATE_DIR, or "
            "OPBOX_STORE_URL in a cluster"
        )
    return place.checkpoints
