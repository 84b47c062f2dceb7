"""The tree of domain errors. No HTTP here: one table in the service maps these types to statuses.

Each message is one sentence: subject, expected, got, what to do. An error raised by an operator's rule knows its
argument; the graph pass that called the rule adds the node (`at`), so the user reads

    fc1 (FullyConnected, train.py:12): weight: expected (10, 20), got (10, 21)
"""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb
from typing import Any

__all__ = [
    "AuthenticationError",
    "BadRequestError",
    "ConflictError",
    "DTypeError",
    "DeadlineError",
    "ForbiddenError",
    "GoneError",
    "GraphError",
    "LimitError",
    "NotFoundError",
    "NotReadyError",
    "OpboxError",
    "ParamError",
    "QuotaError",
    "ShapeError",
    "UnderdeterminedError",
    "UnknownOperatorError",
    "UnsupportedError",
    "UserCodeError",
    "WorkerDiedError",
    "place_of",
]

_OURS = {"opbox_ops", "opbox_service", "numpy", "cupy"}


class OpboxError(Exception):
    """Base of every error that a user can cause.

    Attributes:
        message: one clear sentence.
        node: name of the graph node concerned, or None.
        detail: further JSON-able facts (the user's traceback, the failed command's index).
    """

    def __init__(self, message: str, *, node: str | None = None, detail: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.detail: dict[str, Any] = detail or {}

    def at(self, node: str, op: str | None, source: str | None = None) -> OpboxError:
        """The same error, told of a node: prefixed with its name, operator and the user's line."""
        if self.node is not None:
            return self
        place = ", ".join(part for part in (op, source) if part)
        self.message = f"{node} ({place}): {self.message}" if place else f"{node}: {self.message}"
        self.args = (self.message,)
        self.node = node
        return self

    def __str__(self) -> str:
        return self.message


class BadRequestError(OpboxError):
    """The request cannot be understood: malformed JSON, a frame whose lengths disagree."""


class GraphError(BadRequestError):
    """The graph is not a graph: a cycle, a dangling index, a duplicate name."""


class UnknownOperatorError(BadRequestError):
    """No operator of that name is registered."""


class ParamError(BadRequestError):
    """An operator parameter is missing, unknown or of the wrong kind."""


class ShapeError(OpboxError):
    """Shapes that contradict each other.

    Raised by rules with the side and position of the argument; the pass turns the position into its name.
    """

    def __init__(
        self,
        message: str,
        *,
        side: str | None = None,
        index: int | None = None,
        node: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, node=node, detail=detail)
        self.side = side
        self.index = index


class UnderdeterminedError(ShapeError):
    """Shapes or types that the given inputs do not determine."""


class DTypeError(ShapeError):
    """Element types that contradict each other, or that an operator does not take."""


class UnsupportedError(OpboxError):
    """A known thing that this server, device or build cannot do."""


class LimitError(OpboxError):
    """Larger than a configured limit."""


class QuotaError(OpboxError):
    """More sessions, memory or requests than the owner may have."""


class NotFoundError(OpboxError):
    """No such session, array, executor, graph or operator (or it is somebody else's)."""


class ConflictError(OpboxError):
    """An id that is taken, or a state that does not allow the command."""


class GoneError(OpboxError):
    """A session that has expired or was deleted."""


class AuthenticationError(OpboxError):
    """No token, or a wrong one."""


class ForbiddenError(OpboxError):
    """A token without the scope that the call needs."""


class NotReadyError(OpboxError):
    """The server is starting, stopping or at capacity."""


class DeadlineError(OpboxError):
    """The call outlived its deadline."""


class WorkerDiedError(OpboxError):
    """The worker process that ran the call has ended."""


class UserCodeError(OpboxError):
    """An exception inside an operator that the user wrote; `detail["traceback"]` is theirs."""


def place_of(error: Exception) -> str:
    """ " (file.py:12)", the line of somebody's operator file in which an error was raised; "" for our own code."""
    own = [each for each in extract_tb(error.__traceback__) if not _is_ours(Path(each.filename))]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _is_ours(path: Path) -> bool:
    return str(path).startswith("<frozen") or not _OURS.isdisjoint(path.parts)
