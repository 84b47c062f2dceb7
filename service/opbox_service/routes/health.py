"""Routes of the process itself: health, name and version, metrics, events, documentation, and the end of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, Field

from opbox_ops.backend.gpu_description import gpu_description
from opbox_ops.cpu.description import cpu_description
from opbox_protocol.errors import NotFoundError, NotReadyError
from opbox_protocol.wire import BODY_PARTS, ZSTD
from opbox_protocol.zstd import is_available

from ..accounting.books import Books
from ..carriers import Answer, Call, Done, RawRequest
from ..checkpoint_store import FileCheckpoints
from ..dataset_store import FileDatasets
from ..models.overrides import ModelOverride
from ..models.reference import ModelReference
from ..models.repository import ModelRepository
from ..models.shared_memory import SharedMemory
from ..owner_terms import Scope

if TYPE_CHECKING:
    from ..worker.model_publishing import ModelPublishing

__all__ = ["EXTENSIONS", "About", "CancelledRequest", "Live", "Place", "Ready", "ServedModels"]
__all__ += ["about", "books_of", "cancel", "events", "live", "metrics", "openapi", "ready", "server_metadata"]


EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
    "trace",
)
"""What every server has of the Open Inference Protocol's extensions."""
SHARED_MEMORY = "system_shared_memory"
"""The extension of a server that takes shared memory."""
OWN_EXTENSIONS = ("opbox_backward", "opbox_inner_values")
"""What it has beyond them: gradients of models, and the values inside them."""


class ServedModels(Protocol):
    """The models of a server, for the routes of the Open Inference Protocol.

    Attributes:
        repository: their files and states.
        shared_memory: regions that clients registered.
    """

    repository: ModelRepository
    shared_memory: SharedMemory

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """Load a model's versions; MXNetError says why one was not loaded."""

    async def all_statistics(self) -> list[dict[str, Any]]:
        """The figures of every version, with their full names."""

    async def statistics(self, owner: str) -> list[dict[str, Any]]:
        """The figures of every version that an owner may call."""

    async def summaries(self, owner: str | None) -> list[dict[str, Any]]:
        """Device, size and traffic of every version that an owner may call; of all, with their full names, for None."""

    async def unload(self, name: str) -> None:
        """Serve a model no more; BadRequestError for one that is not known."""

    def find(self, request: RawRequest) -> ModelReference:
        """Find out what a request is for; a version that another may drop meanwhile."""

    def using(self, request: RawRequest) -> AbstractContextManager[None]:
        """Find out what a request is for, and keep that version until the request has been answered."""


class Place(Protocol):
    """The figures that these routes need from the process that serves them: an API process or an embedded engine."""

    @property
    def checkpoints(self) -> FileCheckpoints | None:
        """The store of checkpoints; None where the server has none."""

    @property
    def datasets(self) -> FileDatasets | None:
        """The store of datasets."""

    @property
    def unready(self) -> str:
        """Why calls cannot be taken; empty where they can be."""

    @property
    def confinement(self) -> str:
        """What confines code of sessions; empty in an engine in one's own process."""

    @property
    def books(self) -> Books | None:
        """Accounts and usage; None in an engine in one's own process."""

    @property
    def served_models(self) -> ServedModels:
        """The models that this server serves; NotFoundError where there is no server."""

    @property
    def publishing(self) -> ModelPublishing:
        """Takes the models that owners publish; NotFoundError where there is no server."""

    def begin(self, work: Coroutine[Any, Any, Answer | None], done: Done) -> None:
        """Do something that takes its time; `done` gets its answer, an empty one for None, or its error."""

    def metrics(self) -> Coroutine[Any, Any, Answer]:
        """Prometheus metrics."""

    def events(self, owner: str, scopes: frozenset[Scope]) -> AsyncIterator[bytes]:
        """The server's state, sent by server-sent events to an owner with these scopes."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""

    def cancel(self, owner: str, request_id: str) -> bool:
        """Stop an owner's request; return False if the id is unknown."""


def books_of(place: Place, call: Call) -> Books:
    """The server's accounts and history; NotFoundError where there is no server."""
    if place.books is None:
        raise NotFoundError(
            f"{call.route.method} {call.route.path}: expected a server, got an engine in this process: use "
            "`opbox serve`"
        )
    return place.books


class Live(BaseModel):
    """The server runs."""

    live: bool


class Ready(BaseModel):
    """Calls can be taken."""

    ready: bool


class About(BaseModel):
    """The server's name, version and extensions, and what computes."""

    name: str
    version: str
    extensions: list[str]
    cpu: str = Field(description="What computes on its CPU, and what to install where something is missing.")
    gpu: str = Field(description="Its GPUs, or why they cannot be used and what to do; empty where it has none.")
    code: str = Field(description="What confines code of sessions on its kernel; empty where it takes none.")


class CancelledRequest(BaseModel):
    """The id of the request that was stopped."""

    cancelled: str


def live(place: Place, call: Call, done: Done) -> None:
    """Answer that the server runs. Needs no token."""
    done(Answer({"live": True}))


def ready(place: Place, call: Call, done: Done) -> None:
    """Tell whether the server takes calls: not from the moment that it begins to stop. Needs no token."""
    if place.unready:
        raise NotReadyError(place.unready)
    done(Answer({"ready": True}))


def about(place: Place, call: Call, done: Done) -> None:
    """The server's name, version, extensions, as the Open Inference Protocol has them; what computes and confines."""
    metadata = server_metadata()
    if place.books is not None and place.served_models.shared_memory.is_on:
        metadata = {**metadata, "extensions": [*metadata["extensions"], SHARED_MEMORY]}
    done(Answer({**metadata, "code": place.confinement}))


@cache
def server_metadata() -> dict[str, Any]:
    """Return the answer of `about`, made once: Python reads files each time that it is asked for a version."""
    extensions = [*EXTENSIONS, *OWN_EXTENSIONS, BODY_PARTS, *([ZSTD] if is_available() else [])]
    lines = {"cpu": cpu_description().line, "gpu": gpu_description().line}
    return {"name": "opbox", "version": version("opbox-service"), "extensions": extensions, **lines}


def cancel(place: Place, call: Call, done: Done) -> None:
    """Stop a request of yours, by its X-Request-Id: it is answered 499 at its next step."""
    id = call.parameters["request"]
    if not place.cancel(call.owner, id):
        raise NotFoundError(f"request {id[:128]!r}: expected one of yours that is being answered, got another")
    done(Answer({"cancelled": id}))


def metrics(place: Place, call: Call, done: Done) -> None:
    """Prometheus metrics."""
    place.begin(place.metrics(), done)


def events(place: Place, call: Call, done: Done) -> None:
    """Send the server's state by server-sent events: `state` at once and then every second, with a JSON object."""
    stream = place.events(call.owner, call.scopes)
    done(Answer({}, stream=stream, content_type="text/event-stream", headers=((b"cache-control", b"no-store"),)))


def openapi(place: Place, call: Call, done: Done) -> None:
    """This document."""
    done(Answer(place.openapi()))
