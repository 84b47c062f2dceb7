"""The base of commands: a pydantic model of a command's JSON, with `run`, which executes it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import numpy as np
from pydantic import Field

from opbox_ops.backend import Backend
from opbox_ops.compute import Array

from ..owner_terms import Scope
from ..validation import Expected, InPieces, Strict

if TYPE_CHECKING:
    from .array_table import ArrayTable

__all__ = ["ID_END", "Attrs", "Command", "Exchange", "Id", "Ids", "IdsByName", "IdsOrNone", "TypedCommand"]

ID_END = 1 << 63
"""Ids of arrays and executors are smaller than this."""

Id = Annotated[
    int,
    Field(ge=0, lt=ID_END, description="Chosen by the client; arrays, executors and kernels share the numbers."),
    Expected("an integer from 0 to 2**63 - 1"),
]
Ids = Annotated[list[Id], InPieces()]
IdsOrNone = Annotated[list[Id | None], InPieces()]
IdsByName = Annotated[dict[str, Id], InPieces()]
Attrs = Annotated[dict[str, Any], Field(description="The operator's parameters, typed or as MXNet's strings.")]


class Exchange(Protocol):
    """The tensors that came with a batch of commands, and the results that go back."""

    @property
    def following(self) -> TypedCommand | None:
        """The command behind the one at hand; None behind the last one."""

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor that came with the commands; BadRequestError when there is none of that name."""

    def device_copy(self, name: str, backend: Backend) -> Array:
        """A tensor as a new array of the device."""

    def send(self, name: str, array: Array, backend: Backend) -> None:
        """Send an array's values back under a name; BadRequestError when the name is taken."""

    def report(self, **result: Any) -> None:
        """Send a JSON result back, for the command at hand."""


class TypedCommand(Protocol):
    """A command that has been validated; for its attributes see `Command`."""

    scope: ClassVar[Scope]
    changes_arrays: ClassVar[bool]
    always_runs: ClassVar[bool]
    silences: ClassVar[bool]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        """See `Command.run`."""


class Command(Strict):
    """Base of all commands. A subclass has its name as the literal `do`.

    Attributes:
        scope: what a token needs beyond `run` to send it.
        changes_arrays: whether arrays may hold other values after it.
        always_runs: whether it runs even in a batch that an error has stopped: the client counts on it.
        silences: whether NumPy warns of nothing in it, whoever runs it: a plan sees to that itself.
    """

    scope: ClassVar[Scope] = "run"
    changes_arrays: ClassVar[bool] = True
    always_runs: ClassVar[bool] = False
    silences: ClassVar[bool] = False

    @abstractmethod
    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        """Execute the command. All ids are checked before anything changes.

        Raises:
            MXNetError: what does not fit; nothing has changed.
        """
