"""Sessions: a device stream carried by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from opbox_protocol.reports import MAX_HOST, MAX_SCRIPT

from ..carriers import Answer, Call, Done, Rest
from ..commands import AnyCommand
from ..stateless.graph_runner import Device
from ..validation import Expected, InPieces, RandomSeed
from .models import Body, Tensor, TensorBody

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = [
    "UNREACHED",
    "Accepted",
    "Cancelled",
    "CommandsAnswer",
    "CommandsRequest",
    "Deleted",
    "SessionAnswer",
    "SessionList",
    "SessionRequest",
    "SessionState",
    "cancel",
    "create",
    "delete",
    "run_commands",
    "session",
    "sessions",
]

UNREACHED = "Added by a cluster's gateway: the nodes whose rows are missing."


class SessionRequest(Body):
    """The devices and the options of a new session."""

    device: Device | None = None
    devices: list[Device] | None = Field(
        default=None,
        description="Several GPUs of the server, in place of device; a batch begins on the first of them.",
    )
    ttl_s: Annotated[float | None, Expected("seconds above 0")] = Field(
        default=None, description="Seconds until the unused session ends."
    )
    seed: RandomSeed = 0
    code: bool | None = Field(
        default=None,
        description="true: a process of its own for code from the start; false: no code; null: from the first code on.",
    )
    script: Annotated[str, Expected(f"a name of at most {MAX_SCRIPT} characters")] = Field(
        default="", max_length=MAX_SCRIPT, description="Name of the program that opens the session, for display."
    )
    host: Annotated[str, Expected(f"a name of at most {MAX_HOST} characters")] = Field(
        default="", max_length=MAX_HOST, description="Name of the program's machine, for display."
    )


class SessionAnswer(BaseModel):
    """A new session."""

    id: str
    device: str = Field(description="The first of its devices.")
    devices: list[str] = Field(default=[], description="All of them, in the order in which it got them.")
    ttl_s: float
    limits: dict[str, int]
    script: str = Field(default="", description="Name of the program that opened the session.")
    host: str = Field(default="", description="Name of the program's machine.")
    node: str | None = Field(default=None, description="Added by a cluster's gateway: the node that has it.")
    url: str | None = Field(default=None, description="Added by a cluster's gateway to a new session: its node's URL.")


class SessionState(SessionAnswer):
    """A session as it is now."""

    idle_s: float
    age_s: float = 0
    created: float = Field(description="Seconds since 1970.")
    next_seq: int
    waiting: int = Field(default=0, description="Batches that wait for their turn in the session.")
    calls_before: int = Field(default=0, description="Calls that would go before a new one of yours on the worker.")
    wait_s: float = Field(default=0, description="Estimated seconds that it would wait for its turn.")
    objects: int = Field(description="Arrays, executors and kernels.")
    executors: int = 0
    steps: int = Field(default=0, description="Number of backward passes: the steps of a training.")
    bytes: int = Field(description="In use on all its devices.")
    bytes_by_device: dict[str, int] = {}
    peak_bytes: int


class SessionList(BaseModel):
    """Sessions, the oldest first."""

    sessions: list[SessionState]
    unreached: list[str] | None = Field(default=None, description=UNREACHED)


class Deleted(BaseModel):
    """The id of the session that was deleted."""

    deleted: str


class Cancelled(BaseModel):
    """The places of the batches that were stopped."""

    cancelled: list[int]


class CommandsRequest(TensorBody):
    """A batch. Its commands are validated when it has its place, so that one it cannot read does not hold up others."""

    model_config = ConfigDict(json_schema_extra={"required": ["commands"]})

    seq: Annotated[int | None, Field(ge=1), Expected("an integer of 1 or more")] = Field(
        default=None, description="Number of the batch, from 1; by default the next."
    )
    commands: SkipValidation[list[AnyCommand]] = Field(default=None)  # type: ignore[arg-type]  # `parse` says that it is missing
    wait: bool = Field(default=True, description="false: answer 202 at once; the next batch that waits gets the error.")
    graphs: Annotated[list[str], InPieces()] = Field(
        default_factory=list,
        description="Names of graphs that the batch needs; if one is unknown, nothing runs and seq stays free.",
    )
    inputs: SkipValidation[list[Tensor]] = Field(default_factory=list)


class CommandsAnswer(BaseModel):
    """The tensors and results that the batch asked for."""

    results: list[dict[str, Any]] = Field(description="Results of describing commands, with their `command` number.")
    warnings: list[str] = Field(
        default=[],
        description="Warnings about the program's own operators; absent if there are none.",
    )
    outputs: list[Tensor] = Field(default=[], description="The fetched tensors.")


class Accepted(BaseModel):
    """The place of a batch that runs in its turn."""

    accepted: int


def create(engine: Engine, call: Call, done: Done) -> None:
    """Open a session on a device, or on several GPUs."""
    body: SessionRequest = call.body
    session = engine.sessions.create(
        call.owner,
        device=body.device,
        devices=body.devices,
        ttl_s=body.ttl_s,
        seed=body.seed,
        code=body.code,
        scopes=call.scopes,
        quota=call.quota,
        script=body.script,
        host=body.host,
    )
    done(Answer(session.opened(), status=201))


def sessions(engine: Engine, call: Call, done: Done) -> None:
    """Your sessions."""
    done(Answer({"sessions": [session.json() for session in engine.sessions.of(call.owner)]}))


def session(engine: Engine, call: Call, done: Done) -> None:
    """One session: its memory, its age, the batch that it waits for."""
    done(Answer(engine.sessions.get(call.owner, call.parameters["id"]).json()))


def delete(engine: Engine, call: Call, done: Done) -> None:
    """End a session; all that it held is freed."""
    id = call.parameters["id"]
    engine.sessions.delete(call.owner, id)
    done(Answer({"deleted": id}))


def cancel(engine: Engine, call: Call, done: Done) -> None:
    """Stop the batch that runs and those that wait; arrays stay as the last whole step left them."""
    done(Answer({"cancelled": engine.sessions.get(call.owner, call.parameters["id"]).cancel()}))


def run_commands(engine: Engine, call: Call, done: Done) -> Rest:
    """Run a batch of commands in its turn; what it fetches. The first error stops it."""
    body: CommandsRequest = call.body
    session = engine.sessions.get(call.owner, call.parameters["id"])
    seq = session.submit(
        body.seq,
        body.commands,
        call.tensors,
        done if body.wait else None,
        call.scopes,
        call.limit,
        call.task,
        body.graphs,
        call.json_bytes,
    )
    if not body.wait:
        count = len(body.commands) if isinstance(body.commands, list) else 0
        done(Answer({"accepted": seq}, status=202, commands=count))
    return session.drain
