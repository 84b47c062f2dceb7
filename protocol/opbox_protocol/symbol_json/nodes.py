"""Interfaces to either side's nodes: a `Maker` makes nodes for the reader, a `NodeRow` describes one to the writer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

__all__ = ["SOURCE", "Maker", "N", "ParsedCall", "NodeRow", "Subgraph"]

SOURCE = "__source__"
"""The hidden attribute with the user's line; it travels to the engine, and is in no file."""

N = TypeVar("N")
Subgraph: TypeAlias = Sequence[tuple[N, int]]
"""Heads of a graph inside a node: nodes with output numbers."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """An operator with its parameters read.

    Attributes:
        inputs: names of the inputs in order, auxiliary states included.
        aux: positions of the auxiliary states among them.
        spec: the maker's own reading of the parameters, which `Maker.node` gets back.
    """

    inputs: Sequence[str]
    aux: Collection[int]
    spec: Any


class Maker(Protocol[N]):
    """Makes the nodes of one side."""

    def call(self, kind: str, name: str, attrs: Mapping[str, str], subgraphs: Sequence[Subgraph[N]]) -> ParsedCall:
        """Read a node's parameters, and the heads of its subgraphs; UnknownOperatorError, ParamError as they come."""

    def variable(self, name: str, attrs: dict[str, str], source: str | None) -> N:
        """A variable."""

    def node(
        self, call: ParsedCall, name: str, attrs: dict[str, str], inputs: list[tuple[N, int]], source: str | None
    ) -> N:
        """An operator's node; each input is a node and the number of its output."""

    def outputs(self, node: N) -> int:
        """Return the number of outputs of a node, hidden ones included."""

    def annotate(self, node: N, key: str, value: str) -> bool:
        """Set an attribute of a variable of this maker; False for a node that is no variable."""


@dataclass(slots=True)
class NodeRow(Generic[N]):
    """A node as `write` needs it; `op` is None for a variable, `outputs` counts hidden ones too.

    `subgraphs` has the nodes of each of its subgraphs, inputs before their users, and the heads.
    """

    op: str | None
    name: str
    attrs: Mapping[str, str]
    inputs: Sequence[tuple[N, int]]
    aux: Collection[int]
    outputs: int
    source: str | None
    subgraphs: Sequence[tuple[Iterable[N], Subgraph[N]]] = ()
