"""Node and Entry: the linked form of a graph, which gradient rules read and build.

A node is a call of an operator (or a variable, whose `op` is None); an entry is one of its outputs. The service makes
an ordered, immutable Graph of them. Nodes compare by identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .operator import Op
    from .params import Params

__all__ = ["Entry", "Node"]


@dataclass(eq=False, slots=True)
class Node:
    """One operator call, or a variable. Nobody changes one that is made; a frozen class would take four times as long.

    Attributes:
        op: the operator; None for a variable.
        name: unique among arguments; shown in errors.
        attrs: all attributes as strings, hidden ones (`__shape__`) included.
        params: the parsed parameters of `op`; None for a variable.
        inputs: what it reads, auxiliary states included, in the operator's order.
        forward: for a backward node, the node that it is the gradient of.
        source: the user's file and line, when known.
        outputs: how many outputs it has, for a backward node; None: as many as its operator declares.
    """

    op: Op | None
    name: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    params: Params | None = None
    inputs: tuple[Entry, ...] = ()
    forward: Node | None = None
    source: str | None = None
    outputs: int | None = None

    def __repr__(self) -> str:
        return f"<{self.op.name if self.op else 'variable'} {self.name}>"

    @property
    def num_outputs(self) -> int:
        """Outputs, hidden ones included (1 for a variable)."""
        if self.outputs is not None:
            return self.outputs
        return 1 if self.op is None else self.op.num_outputs(self.params)

    def entries(self) -> tuple[Entry, ...]:
        """All outputs as entries."""
        count = self.num_outputs
        return (Entry(self, 0),) if count == 1 else tuple([Entry(self, i) for i in range(count)])

    @property
    def like(self) -> tuple[Entry, ...]:
        """For a backward node without rules of its own: the entries that its outputs have the shapes and types of."""
        if self.forward is None or self.op is None or not self.op.is_backward or self.op.shape_rule is not None:
            return ()
        assert self.forward.op is not None
        aux = self.forward.op.aux_indices(self.forward.params)
        if not aux:
            return self.forward.inputs[: self.num_outputs]
        inputs = [entry for i, entry in enumerate(self.forward.inputs) if i not in aux]
        return tuple(inputs[: self.num_outputs])

    def output_names(self) -> list[str]:
        """Names of the outputs as MXNet lists them: `fc1_output`, `bn_mean`; a variable's is its own name."""
        if self.op is None:
            return [self.name]
        if self.forward is not None:
            return [f"{self.name}_{i}" for i in range(self.num_outputs)]
        return [f"{self.name}_{suffix}" for suffix in self.op.output_names(self.params)]


class Entry(NamedTuple):
    """Output `index` of `node`."""

    node: Node
    index: int = 0  # type: ignore[assignment]  # not the method of tuples
