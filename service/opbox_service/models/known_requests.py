"""KnownRequests: requests for a model whose JSON came before, found by its bytes.

A client sends the same JSON with every request: names, shapes and what it wants back. From the second request on its
tensors go to the plan at once, and the JSON of its answer is there. A request's id alone may differ, where it is the
first thing in the JSON, as clients write it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from opbox_protocol import wire

from .. import json_text
from .model_plans import PlanKind, TensorForm
from .quick_runs import QuickRuns
from .request_queue import QueueWishes

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from .loaded_model import LoadedModel

__all__ = ["KnownRequest", "KnownRequests", "RecurringRequest", "RequestKey", "RunForm"]

Array: TypeAlias = "np.ndarray[Any, Any]"
MAX_KNOWN = 64
"""Number of requests of a model to keep."""
_ID = re.compile(rb'\{"id": ?"([A-Za-z0-9._:+/= -]{0,128})"(?=[,}])')
"""An id that stands first in a request's JSON, without anything that is written in two ways."""


@dataclass(slots=True)
class RunForm:
    """What requests with the same shapes and outputs have in common, found out and checked once.

    Attributes:
        outputs: names of those that are wanted.
        examples: the length of the inputs' batch axis.
        alone: whether a request is a run of its own.
        batch: requests of the same one run together.
        graph, kind, forms: of the plan; see `ModelPlans.running`.
        wanted: where the outputs stand among those of the plan.
        runs: those that each were of one request.
    """

    outputs: tuple[str, ...]
    examples: int
    alone: bool
    batch: tuple[Any, ...]
    graph: Graph
    kind: PlanKind
    forms: Mapping[str, TensorForm]
    wanted: tuple[int, ...]
    runs: QuickRuns = field(default_factory=QuickRuns)

    @property
    def is_quick(self) -> bool:
        """Whether the latest runs took less time than it takes to hand one to another thread."""
        return self.alone and self.runs.are_quick


class RequestKey(NamedTuple):
    """The JSON of a request, but for its id.

    Attributes:
        owner, path: whose request it is, and its path.
        behind: the text behind the id.
        id: of the request; None where the text has none in its first place, and `behind` is all of it.
    """

    owner: str
    path: str
    behind: bytes
    id: bytes | None

    @classmethod
    def of(cls, owner: str, path: str, text: bytes) -> RequestKey:
        """The key of a request's JSON."""
        match = _ID.match(text) if text.startswith(b'{"id"') else None
        if match is not None:
            behind = text[match.end() :]
            # A second id might be what counts; with a backslash its name is written in another way.
            if b'"id"' not in behind and b"\\" not in behind:
                return cls(owner, path, behind, match[1])
        return cls(owner, path, text, None)


@dataclass(slots=True)
class KnownRequest:
    """A request that came before.

    Attributes:
        places, size: where its tensors lie behind the JSON, and their bytes altogether.
        form: of its run.
        wishes: what it asks of the queue.
        outputs: shape and type by name; what is kept of the answer's JSON is that of such outputs.
        header: of the answer, without an id that stands first in the request.
        before, behind: the answer's JSON before the id and behind it; `before` is all of it where there is none.
    """

    places: Sequence[wire.TensorPlace]
    size: int
    form: RunForm
    wishes: QueueWishes
    outputs: Mapping[str, TensorForm]
    header: Mapping[str, Any]
    before: bytes
    behind: bytes

    def head(self, id: bytes | None, outputs: Mapping[str, Array]) -> bytes:
        """The JSON of an answer with these outputs."""
        for name, array in outputs.items():
            if (array.shape, array.dtype) != self.outputs[name]:  # no operator does that today
                header = self.header if id is None else {**self.header, "id": id.decode()}
                return _written(header, outputs)
        return self.before if id is None else b"".join((self.before, id, self.behind))


class RecurringRequest(NamedTuple):
    """A request for a model that may come again.

    Attributes:
        key: its JSON.
        places, size: where its tensors lie behind that, and their bytes altogether.
        model: that it is for; None where it has not been loaded.
        known: the one that came before; None where none did.
    """

    key: RequestKey
    places: Sequence[wire.TensorPlace]
    size: int
    model: LoadedModel | None = None
    known: KnownRequest | None = None


class KnownRequests:
    """A cache of one model's requests, for many threads; the owner with most of them loses the oldest one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes, bool], KnownRequest] = {}

    def get(self, key: RequestKey, size: int) -> KnownRequest | None:
        """The request of an owner with this JSON and so many bytes of tensors; None where none came before."""
        known = self._known.get((key.owner, key.path, key.behind, key.id is None))
        return known if known is not None and known.size == size else None

    def keep(
        self,
        recurring: RecurringRequest,
        form: RunForm,
        wishes: QueueWishes,
        header: Mapping[str, Any],
        outputs: Mapping[str, Array],
    ) -> None:
        """Keep a request that has been answered with tensors in bytes.

        Args:
            recurring: its JSON, and where its tensors are.
            form, wishes: of its run.
            header: of the answer.
            outputs: those that it was answered with.
        """
        id, key = header.get("id"), recurring.key
        if any(place.size is None for place in recurring.places) or (key.id is not None and id != key.id.decode()):
            return
        text = _written(header, outputs)
        before, behind = text, b""
        if key.id is not None:
            header = {name: value for name, value in header.items() if name != "id"}
            before = json_text.write(header)[:-1] + b',"id":"'
            behind = text[len(before) + len(key.id) :]
            if not text.startswith(before + key.id + b'"'):
                return
        forms = {name: (array.shape, array.dtype) for name, array in outputs.items()}
        while len(self._known) >= MAX_KNOWN:
            keys = list(self._known)
            ((loser, _),) = Counter(key[0] for key in keys).most_common(1)
            self._known.pop(next(key for key in keys if key[0] == loser), None)
        entry = KnownRequest(recurring.places, recurring.size, form, wishes, forms, header, before, behind)
        self._known[key.owner, key.path, key.behind, key.id is None] = entry


def _written(header: Mapping[str, Any], outputs: Mapping[str, Array]) -> bytes:
    """The JSON of an answer whose tensors follow it as bytes."""
    payloads = {name: wire.values_of(array) for name, array in outputs.items()}
    return b"".join(json_text.write_tensors(header, outputs, in_bytes=payloads))
