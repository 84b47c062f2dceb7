"""A batch of commands on its way through a session: what it was given, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from opbox_ops.backend import Backend
from opbox_ops.compute import Array
from opbox_protocol.errors import BadRequestError

from . import commands as c

__all__ = ["Answer", "Batch", "Done"]

Tensors: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"

_READERS = (c.Fetch, c.Describe, c.DescribeExecutor, c.Free)
"""Commands after which an array's values are what they were before."""


class Answer:
    """What a call answers: a status, a JSON header, tensors; valid while its receiver runs, and not after."""

    __slots__ = ("commands", "header", "session", "status", "tensors")

    def __init__(
        self,
        header: dict[str, Any],
        tensors: dict[str, np.ndarray[Any, Any]] | None = None,
        status: int = 200,
        commands: int = 0,
    ) -> None:
        self.header = header
        self.tensors = tensors if tensors is not None else {}
        self.status = status
        self.commands = commands


Done: TypeAlias = "Callable[[Answer | BaseException], None]"


class Batch:
    """One batch.

    Args:
        seq: its place in the session's order.
        commands: the typed commands, or the error that reading them gave.
        tensors: the request's tensors; views that live until `done` is called.
        done: takes the answer, in the session's turn; None when nobody waits.
    """

    def __init__(
        self, seq: int, commands: Sequence[c.Command] | BaseException, tensors: Tensors, done: Done | None
    ) -> None:
        self.seq = seq
        self.commands = commands
        self.done = done
        self.results: list[dict[str, Any]] = []
        self.outputs: dict[str, np.ndarray[Any, Any]] = {}
        self.since = time.monotonic()
        self.at = 0
        self._tensors = dict(tensors)
        self._own: set[str] = set()
        self.own_bytes = 0
        self._quiet_from = 0
        if not isinstance(commands, BaseException):
            changing = [i for i, command in enumerate(commands) if not isinstance(command, _READERS)]
            self._quiet_from = changing[-1] if changing else 0

    @property
    def nothing_changes(self) -> bool:
        """Whether no command from the one at hand on changes an array."""
        return self.at >= self._quiet_from

    def own_tensors(self, backend: Backend) -> None:
        """Copy the tensors, so that the request's buffer may go while the batch waits."""
        for name, tensor in self._tensors.items():
            on_cpu = backend.device_type == "cpu"
            own = backend.empty(tensor.shape, tensor.dtype) if on_cpu else np.empty(tensor.shape, tensor.dtype)
            own[...] = tensor
            self._tensors[name] = own
            self.own_bytes += int(tensor.nbytes)
        self._own = set(self._tensors)

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor of the request; BadRequestError when it has none of that name."""
        try:
            return self._tensors[name]
        except KeyError:
            listed = ", ".join(list(self._tensors)[:10]) or "none"
            raise BadRequestError(f"tensor {name!r}: expected one of the request's inputs ({listed})") from None

    def device_copy(self, name: str, backend: Backend) -> Array:
        """A tensor as a new array of the device; the batch's own copy is handed over, once, where that will do."""
        host = self.tensor(name)
        if name in self._own and backend.device_type == "cpu":
            self._own.discard(name)
            return host
        return backend.put(host)

    def tell(self, **facts: Any) -> None:
        """Add to the answer's results, under the number of the command at hand."""
        self.results.append({"command": self.at, **facts})

    def finish(self, outcome: BaseException | None) -> None:
        """Hand the answer to who waits for it."""
        if self.done is not None:
            count = 0 if isinstance(self.commands, BaseException) else len(self.commands)
            self.done(outcome or Answer({"results": self.results}, self.outputs, commands=count))
        self._tensors.clear()
        self.outputs = {}
