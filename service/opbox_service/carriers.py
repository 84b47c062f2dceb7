"""Carriers of a request from HTTP to the engine and of its answer back: unread bytes (RawRequest, RawResponse), and
parsed (Call, Answer).

The API process, the connection to a worker process and the worker itself hand on the same raw pair; only the engine's
side reads them. An engine in one's own process is called with Call and Answer at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from opbox_protocol.errors import LimitError, MXNetError
from opbox_protocol.strict_json import NonFinite

from .buffers import Lease
from .logs import Exceptions
from .owner_terms import SCOPES, Scope
from .stages import Stage
from .task import Task

if TYPE_CHECKING:
    from opbox_protocol.wire import TensorPlace

    from .models.known_requests import RecurringRequest
    from .models.reference import ModelReference
    from .models.shared_memory import SharedPlace
    from .routes.route import Route

__all__ = ["NO_LIMIT", "Answer", "AnswerLimit", "Call", "Done", "Headers", "OwnerQuota", "RawRequest", "RawResponse"]
__all__ += ["Rest", "Tensors"]

Tensors: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"
"""HTTP headers: names in lower case, and values."""


class OwnerQuota(NamedTuple):
    """The quota of a call's owner in the worker that runs the call.

    Attributes:
        sessions: how many.
        session_bytes: device memory of one.
        memory_bytes: of all, on each device and in all workers; 0: as the device has.
        elsewhere: what of that it has in other workers, by device.
        host_bytes: what all sessions in the worker may have of the machine's memory; 0: as its settings say.
        beside: what sessions in other workers have of each GPU, whoever's they are.
    """

    sessions: int
    session_bytes: int
    memory_bytes: int = 0
    elsewhere: Mapping[str, int] = {}
    host_bytes: int = 0
    beside: Mapping[str, int] = {}


@dataclass(slots=True, weakref_slot=True)
class RawRequest:
    """A request whose body is not read yet.

    Attributes:
        route, parameters: its route, and the parameters in its path.
        path: its path.
        owner: whose sessions it sees.
        scopes: what its token may.
        request_id: for the log.
        body: a leased buffer, a view of one that another process leased, or bytes.
        header_length: bytes of the JSON part; None when all of the body is JSON.
        binary: whether the answer's tensors may travel as bytes.
        non_finite: how JSON answers have NaN and the infinities.
        weight, interactive: of the owner, and of the call: see `turns`.
        quota: of the owner; None where it is as the settings have it.
        worker: which has its body already, in a buffer of its own; None where any will do.
        model: what a call for a model is for; None for other calls.
        shared_outputs: where outputs of a model go in shared memory, by name.
        trace: W3C's traceparent of the request's span; "" where it is not traced.
        cancel: stops the call, once it has been made.
    """

    route: Route
    parameters: Mapping[str, str]
    path: str
    owner: str
    scopes: frozenset[Scope]
    request_id: str
    body: Lease | memoryview | bytes = b""
    header_length: int | None = None
    binary: bool = False
    non_finite: NonFinite = "string"
    weight: float = 1.0
    interactive: bool = True
    quota: OwnerQuota | None = None
    worker: object = None
    model: ModelReference | None = None
    shared_outputs: Mapping[str, SharedPlace] = field(default_factory=dict)
    trace: str = ""
    cancel: Callable[[MXNetError], None] = field(default=lambda error: None)

    def __str__(self) -> str:
        return f"{self.route.method} {self.path}"

    @property
    def view(self) -> memoryview | bytes:
        """The body's bytes."""
        return self.body.view if isinstance(self.body, Lease) else self.body

    def release(self) -> None:
        """Return a leased body to its pool. Calling it twice is safe."""
        if isinstance(self.body, Lease):
            self.body.release()


@dataclass(slots=True)
class RawResponse:
    """An answer laid out: the parts of its body, valid until `release`.

    Attributes:
        header_length: bytes of the JSON part when tensors follow it as bytes; None when all is JSON.
        commands: how many commands of a session were run or accepted.
        problem: the unexpected exception that it reports, for the log; None for a user's error.
        content_type: of the body.
        headers: further ones.
        queue: of a call that waits or was refused for being too many: the calls before a new one, and its wait in
            seconds.
        stream: a body that comes in pieces, instead of `parts`.
        stages: when a traced call waited and computed.
    """

    status: int
    parts: list[bytes | memoryview]
    header_length: int | None = None
    commands: int = 0
    problem: Exceptions | None = None
    content_type: str = "application/json"
    headers: Headers = ()
    queue: tuple[int, float] | None = None
    stream: AsyncIterator[bytes] | None = None
    stages: Sequence[Stage] = ()
    release: Callable[[], None] = field(default=lambda: None)

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.parts))

    @property
    def body(self) -> bytes | memoryview:
        """The body in one piece; copied only when it has several."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def write_to(self, view: memoryview) -> None:
        """Write the parts one after the other."""
        at = 0
        for part in self.parts:
            # numpy copies without the interpreter's lock; a memoryview's assignment holds it.
            np.copyto(np.frombuffer(view[at : at + len(part)], np.uint8), np.frombuffer(part, np.uint8))
            at += len(part)


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    """The largest size of an answer's tensors together.

    Attributes:
        nbytes: as bytes.
        values: in number; they are written in JSON, unless this is None.
    """

    nbytes: int = 1 << 62
    values: int | None = None

    def check(self, subject: str, arrays: Iterable[Any]) -> None:
        """LimitError when the arrays are too large; nothing is copied."""
        nbytes = values = 0
        for array in arrays:
            nbytes += int(array.nbytes)
            values += int(array.size)
        self.check_size(subject, nbytes, values)

    def check_size(self, subject: str, nbytes: int, values: int) -> None:
        """Raise LimitError for too many bytes or values."""
        if nbytes > self.nbytes:
            raise LimitError(f"{subject}: expected at most {self.nbytes} bytes, got {nbytes}: ask for less at a time")
        if self.values is not None and values > self.values:
            raise LimitError(
                f"{subject}: expected at most {self.values} values in JSON, got {values}: ask for bytes "
                "(Accept: application/octet-stream), or for less at a time"
            )


NO_LIMIT = AnswerLimit()
"""Of an answer that is known to be no larger than it may be."""


@dataclass(slots=True)
class Call:
    """A validated request, never changed. Its tensors live until the answer is sent.

    Attributes:
        route, parameters: its route, and the parameters in its path.
        body: the JSON of the body, as the route's model.
        limit: how large the answer may be.
        task: stops the work.
        quota: of the owner; None where it is as the settings have it.
        json_bytes: of memory that the body's JSON takes at most, where that is counted.
        model: what it is for; None for calls that are for no model.
        recurring: the request for a model that it is, and may be again; None for others.
        places: where its tensors lie behind the JSON.
        raw: the whole body, which is a model's only input; None for others.
    """

    route: Route
    parameters: Mapping[str, str]
    body: Any = None
    tensors: Tensors = field(default_factory=dict)
    owner: str = "local"
    scopes: frozenset[Scope] = SCOPES
    limit: AnswerLimit = AnswerLimit()
    task: Task | None = None
    quota: OwnerQuota | None = None
    json_bytes: int = 0
    model: ModelReference | None = None
    recurring: RecurringRequest | None = None
    places: Sequence[TensorPlace] = ()
    raw: memoryview | None = None


@dataclass(slots=True)
class Answer:
    """The answer to a call; its tensors are valid while its receiver runs, and not after.

    Attributes:
        header: the JSON object of the body.
        commands: how many commands of a session were run or accepted.
        text: a body of another `content_type`, instead of JSON.
        stream: the same in pieces, for as long as the client reads; from the API process only.
        headers: further ones of HTTP.
        inferred: the tensors that travel as bytes, in the Open Inference Protocol's layout; None for this server's own.
    """

    header: dict[str, Any]
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    status: int = 200
    commands: int = 0
    text: bytes | None = None
    content_type: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    headers: Headers = ()
    inferred: frozenset[str] | None = None


Done: TypeAlias = "Callable[[Answer | BaseException], None]"
"""Takes the answer of a call, or the error that it ended with."""
Rest: TypeAlias = "Callable[[], None] | None"
"""Work that a call leaves to any thread, now or later."""
