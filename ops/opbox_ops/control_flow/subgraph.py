"""The seam between the operators that run subgraphs and the service, which infers, compiles and runs graphs.

    Subgraph    a graph inside a node's parameters: its variables, and inference through it
    Compiler    found in `call.nested`: compiles a subgraph for given arrays, into a
    CompiledSubgraph        a plan, which is bound once for forward and once for backward, and run once a step

A body reads some variables from arrays of its own, which the operator fills before each step (a step's slices of the
data, the states); all others are the operator's own inputs, read where they lie. What its backward needs of a forward
run is one array of bytes (`Run.saved`): the operator keeps a copy for each step and puts it back before that step's
backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, Self

from pydantic import InstanceOf
from pydantic.json_schema import SkipJsonSchema

from opbox_protocol.control_flow import SUBGRAPHS, aux_inputs, wiring
from opbox_protocol.errors import GraphError

from ..compute import Array, ArraySpec, OpContext
from ..infer import DType, Shape
from ..params import Field, NonNegativeInt, Params, PositiveInt

__all__ = ["CompiledSubgraph", "Compiler", "LoopParams", "Run", "Subgraph", "SubgraphParams", "carried"]


class Subgraph(ABC):
    """A graph inside a node.

    Attributes:
        inputs: the names of its variables in order, auxiliary states included.
        states: positions of the auxiliary states among them.
        num_outputs: how many heads it has.
        stateful: whether an operator inside keeps a state from forward to backward that is not an array.
    """

    inputs: tuple[str, ...]
    states: frozenset[int]
    num_outputs: int
    stateful: bool

    @abstractmethod
    def infer_shape(self, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[list[Shape], list[Shape]]:
        """Infer the shapes of the variables and of the heads from those already known; None stays unknown."""

    @abstractmethod
    def infer_type(self, ins: Sequence[DType], outs: Sequence[DType]) -> tuple[list[DType], list[DType]]:
        """Infer the types of the variables and of the heads from those already known; None stays unknown."""

    @abstractmethod
    def flow(self, variables: frozenset[int]) -> frozenset[int]:
        """The heads that a gradient can flow from into one of these variables."""


@dataclass(slots=True)
class Run:
    """A body bound to arrays.

    Attributes:
        inputs: the array of each variable.
        outputs: for forward, the array of each head; for backward, what it reads of them (None where it does not).
        saved: what backward needs of a forward run: to be copied after forward, and put back before backward.
        heads: for backward, where the operator writes the gradient of each head; None where none is read.
        grads: for backward, the gradient of each variable; None where none is wanted.
        step: runs it once, as the step of this number; a forward and its backward have the same.
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    saved: Array
    heads: Sequence[Array]
    grads: Sequence[Array]
    step: Callable[[int], None]


class CompiledSubgraph(ABC):
    """A compiled subgraph.

    Attributes:
        saved_bytes: the bytes of `Run.saved`.
        forward_bytes, backward_bytes: the room that a run of either half needs.
    """

    saved_bytes: int
    forward_bytes: int
    backward_bytes: int

    @abstractmethod
    def forward(self, ctx: OpContext, scratch: Array, arrays: Sequence[Array]) -> Run:
        """Bind the forward half.

        Args:
            ctx: the operator's; its state is what `states` made.
            scratch: `forward_bytes` bytes.
            arrays: for each variable, its array; None for one of the body's own.
        """

    @abstractmethod
    def backward(self, ctx: OpContext, scratch: Array, arrays: Sequence[Array], grads: Mapping[int, Array]) -> Run:
        """Bind the backward half.

        Args:
            ctx, arrays: as for forward.
            scratch: `backward_bytes` bytes.
            grads: arrays that the gradients of variables that are not the body's own are added to, by position.
        """


class Compiler(Protocol):
    """Compiles subgraphs for one call of an operator.

    Attributes:
        gradients: the operator's inputs whose gradients are wanted; empty when there will be no backward.
    """

    gradients: frozenset[int]

    def compile(
        self,
        subgraph: Subgraph,
        variables: Sequence[ArraySpec],
        *,
        own: frozenset[int] = frozenset(),
        lent: frozenset[int] = frozenset(),
        lent_heads: frozenset[int] = frozenset(),
        wrt: frozenset[int] = frozenset(),
    ) -> CompiledSubgraph:
        """The body for variables of these shapes and types; the same one for the same arguments.

        Args:
            subgraph: the graph.
            variables: shape and type of each of its variables.
            own: the variables that the body has arrays of its own for.
            lent: those of `own` that the operator fills again before a step's backward.
            lent_heads: the heads whose values the operator puts back before a step's backward.
            wrt: the variables whose gradients backward computes.
        """


class SubgraphParams(Params):
    """Parameters of an operator with subgraphs."""

    op: ClassVar[str]

    num_args: PositiveInt = Field(description="How many inputs and subgraphs.")
    subgraphs: SkipJsonSchema[tuple[InstanceOf[Subgraph], ...]] = Field((), exclude=True)

    @cached_property
    def routes(self) -> tuple[tuple[int, ...], ...]:
        """For each subgraph, the number of the input that each of its variables is.

        Raises:
            GraphError: positions that do not fit the subgraphs, or no subgraphs.
        """
        return wiring(self.op, vars(self), [len(subgraph.inputs) for subgraph in self.subgraphs])

    @cached_property
    def states(self) -> frozenset[int]:
        """The inputs that are auxiliary states inside."""
        if not self.subgraphs:  # a call on arrays, which the shape rule refuses
            return frozenset()
        return aux_inputs(self.routes, [subgraph.states for subgraph in self.subgraphs])

    @property
    def num_inputs(self) -> int:
        """The number of inputs, auxiliary states included."""
        return self.num_args - len(SUBGRAPHS[self.op])

    def having(self, subgraphs: Sequence[Subgraph]) -> Self:
        """These parameters, of a node with these subgraphs.

        Raises:
            GraphError: they do not fit the subgraphs.
        """
        p = self.model_copy(update={"subgraphs": tuple(subgraphs)})
        read = {i for route in p.routes for i in route}
        if read != set(range(p.num_inputs)):
            raise GraphError(
                f"num_args: expected {len(p.subgraphs)} subgraphs and {len(read)} inputs that they read, numbered "
                f"from 0, got num_args {p.num_args} and inputs {sorted(read)[:20]}"
            )
        p.check()
        return p

    def check(self) -> None:
        """GraphError when the parameters do not fit the subgraphs."""
        raise NotImplementedError

    def expect_outputs(self, number: int, count: int) -> None:
        """GraphError unless subgraph `number` has `count` outputs."""
        outputs = self.subgraphs[number].num_outputs
        if outputs != count:
            raise GraphError(f"{SUBGRAPHS[self.op][number]}: expected a subgraph of {count} outputs, got {outputs}")


class LoopParams(SubgraphParams):
    """Parameters of an operator that runs a subgraph again and again."""

    num_outputs: PositiveInt = Field(description="Outputs of the body: its data, then the states.")
    num_out_data: NonNegativeInt = Field(description="How many of the outputs are data, stacked over the steps.")


def carried(subgraph: Subgraph, wrt: frozenset[int], states: Mapping[int, int], real: frozenset[int]) -> frozenset[int]:
    """`wrt` and the states that a gradient has to flow through from one step to the step before it.

    Args:
        subgraph: a loop's body.
        wrt: the variables whose gradients are wanted.
        states: the variable of each state, by its head.
        real: the variables of a floating type: no other has a gradient.
    """
    while True:
        flowing = subgraph.flow(wrt)
        more = wrt | {variable for head, variable in states.items() if head in flowing and variable in real}
        if more == wrt:
            return wrt
        wrt = more
