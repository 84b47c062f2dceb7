"""A batch of commands on its way through a session: the tensors that came with it, and what it answers."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_ops.backend import Backend
from opbox_ops.compute import Array
from opbox_protocol.errors import BadRequestError

from ..carriers import Answer, AnswerLimit, Done, Tensors
from ..commands import TypedCommand
from ..owner_terms import Scope
from ..task import Task

__all__ = ["Batch"]

NO_LIMIT = AnswerLimit()


class Batch:
    """One batch; for its commands, their `Exchange`.

    Args:
        seq: its place in the session's order.
        commands: the typed commands, or the error that reading them gave.
        tensors: the request's tensors; views that live until `done` is called.
        done: takes the answer, in the session's turn; None when nobody waits.
        limit: how large the answer may be.
        task: stops the work.

    Attributes:
        position: of the command at hand.
        since: when it came, by time.monotonic.
        own_bytes: of its own tensors, as the session's budget counts them while it waits.
        waited_for: whether somebody waits for its answer, or did before it was stopped.
        warnings: sentences for the program, which go with the answer.
        brings_code: whether a command of it does.
        source: the commands as they came, with what its token may; kept while it may have to go to another process.
    """

    __slots__ = (
        "_answer_bytes",
        "_answer_values",
        "_changing",
        "_fetched",
        "_limit",
        "_outputs",
        "_own",
        "_results",
        "_tensors",
        "brings_code",
        "commands",
        "done",
        "own_bytes",
        "position",
        "seq",
        "since",
        "source",
        "task",
        "waited_for",
        "warnings",
    )

    def __init__(
        self,
        seq: int,
        commands: Sequence[TypedCommand] | BaseException,
        tensors: Tensors,
        done: Done | None,
        limit: AnswerLimit = NO_LIMIT,
        task: Task | None = None,
    ) -> None:
        self.seq = seq
        self.commands = commands
        self.done = done
        self.waited_for = done is not None
        self.task = task
        self.since = time.monotonic()
        self.position = 0
        self.own_bytes = 0
        self.warnings: list[str] = []
        self.brings_code = False
        self.source: tuple[Any, frozenset[Scope]] | None = None
        self._tensors = dict(tensors)
        self._own: set[str] = set()
        self._results: list[dict[str, Any]] = []
        self._limit = limit
        self._answer_bytes = self._answer_values = 0
        self._outputs: dict[str, np.ndarray[Any, Any]] = {}
        self._fetched: dict[tuple[int, int], tuple[Array, np.ndarray[Any, Any]]] = {}
        self._changing: list[int] | None = None

    @property
    def tensors(self) -> Tensors:
        """The tensors that came with it."""
        return self._tensors

    @property
    def following(self) -> TypedCommand | None:
        """The command behind the one at hand; None behind the last one."""
        commands, after = self.commands, self.position + 1
        return None if isinstance(commands, BaseException) or after >= len(commands) else commands[after]

    def own_tensors(self, backend: Backend) -> None:
        """Copy the tensors, so that the request's buffer may go while the batch waits."""
        for name, tensor in self._tensors.items():
            on_cpu = backend.device_type == "cpu"
            own = backend.empty(tensor.shape, tensor.dtype) if on_cpu else np.empty(tensor.shape, tensor.dtype)
            own[...] = tensor
            self._tensors[name] = own
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

    def send(self, name: str, array: Array, backend: Backend) -> None:
        """Add an array's values to the answer's outputs; between two commands that change arrays they are got once.

        Raises:
            BadRequestError: the name is taken.
            LimitError: the answer would be too large.
        """
        if name in self._outputs:
            raise BadRequestError(f"fetch as {name!r}: expected each name once")
        self._answer_bytes += int(array.nbytes)
        self._answer_values += int(array.size)
        self._limit.check_size(f"fetch as {name!r}: the answer", self._answer_bytes, self._answer_values)
        if self._changing is None:
            assert not isinstance(self.commands, BaseException)
            self._changing = [i for i, command in enumerate(self.commands) if command.changes_arrays]
        changes = bisect_left(self._changing, self.position)
        earlier = self._fetched.get((id(array), changes))
        if earlier is not None:
            self._outputs[name] = earlier[1]
            return
        host = backend.get(array)
        # On the CPU that may be the array's own memory, which the batch's later commands could change.
        unchanged = changes == len(self._changing) or backend.device_type != "cpu"
        self._outputs[name] = host if unchanged else host.copy()
        self._fetched[id(array), changes] = array, self._outputs[name]

    @property
    def sends(self) -> bool:
        """Whether arrays go with its answer."""
        return bool(self._outputs)

    def report(self, **result: Any) -> None:
        """Add to the answer's results, under the number of the command at hand."""
        self._results.append({"command": self.position, **result})

    def finish(self, error: BaseException | None) -> None:
        """Answer the request that waits for this batch, or raise the error in it."""
        if self.task is not None:
            self.task.end()
        done, self.done = self.done, None
        if done is not None:
            count = 0 if isinstance(self.commands, BaseException) else len(self.commands)
            header: dict[str, Any] = {"results": self._results}
            if self.warnings:
                header["warnings"] = self.warnings
            done(error or Answer(header, self._outputs, commands=count))
        self._tensors.clear()
        self._outputs = {}
        self._fetched = {}
