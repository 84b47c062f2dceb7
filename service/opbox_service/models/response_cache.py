"""ResponseCache: answers of models by what was asked, for requests that come again.

An answer is found by the model as it was loaded, the owner who asked, the outputs, and a digest of the tensors: shapes,
types and every byte. So nobody is answered by what another owner sent, nor learns by the time that it was sent.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from opbox_protocol.errors import BadRequestError, QuotaError

from ..executor.inference import leaves_something
from ..graph.ir import Graph
from ..quota import Budget

__all__ = ["AnswerKey", "ResponseCache", "check_repeats"]

Array: TypeAlias = "np.ndarray[Any, Any]"
LARGEST_PART = 4
"""An answer that takes more than this part of the cache would push out too many others."""
ENTRY_BYTES = 1024
"""What an answer takes beside its numbers, about."""


class AnswerKey(NamedTuple):
    """What an answer is found by.

    Attributes:
        model: a number that each loading of a model has anew.
        owner: who asked.
        outputs: the names that were asked for.
        digest: of the tensors.
    """

    model: int
    owner: str
    outputs: tuple[str, ...]
    digest: bytes

    @classmethod
    def of(cls, model: int, owner: str, outputs: Sequence[str], tensors: Mapping[str, Array]) -> AnswerKey:
        """The key of an owner's request."""
        digest = hashlib.sha256()
        for name, array in sorted(tensors.items()):
            digest.update(f"{name!r} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return cls(model, owner, tuple(outputs), digest.digest())


class ResponseCache:
    """The answers that are kept; the one that was used longest ago goes first. Safe to call from many threads.

    Args:
        memory: counts them, and says how many bytes they may be.
    """

    def __init__(self, memory: Budget) -> None:
        self._memory = memory
        self._answers: OrderedDict[AnswerKey, dict[str, Array]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: AnswerKey) -> dict[str, Array] | None:
        """The answer of a request; None where it is not kept."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def keep(self, key: AnswerKey, outputs: Mapping[str, Array]) -> None:
        """Keep a copy of an answer, if there is memory for it."""
        size = _bytes_of(outputs)
        if size > self._memory.limit // LARGEST_PART:
            return
        answer = {name: array.copy() for name, array in outputs.items()}
        with self._lock:
            if key in self._answers:
                return
            while self._answers and self._memory.used + size > self._memory.limit:
                self._drop(next(iter(self._answers)))
            try:
                self._memory.take(size)
            except QuotaError:  # the sessions beside it need the memory
                return
            self._answers[key] = answer

    def forget(self, model: int) -> None:
        """Drop the answers of a model that is not served any more."""
        with self._lock:
            for key in [key for key in self._answers if key.model == model]:
                self._drop(key)

    def _drop(self, key: AnswerKey) -> None:
        self._memory.give(_bytes_of(self._answers.pop(key)))


def check_repeats(graph: Graph) -> None:
    """Raise BadRequestError for a network whose next answer to the same tensors may be another one."""
    for node in graph.nodes:
        if node.op is not None and leaves_something(node):
            raise BadRequestError(
                f"response_cache: expected a network that answers the same tensors alike, got one with {node.name!r} "
                f"({node.op.name}), which may draw random numbers or keep a state: leave response_cache out"
            )


def _bytes_of(outputs: Mapping[str, Array]) -> int:
    return ENTRY_BYTES + sum(array.nbytes for array in outputs.values())
