"""A session's executors: their memory and runs, and the networks that they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from opbox_protocol.errors import NotFoundError

from ..carriers import Answer, Call, Done
from ..executor import Variables, drawing, network, variables_of

if TYPE_CHECKING:
    from ..engine import Engine
    from ..graph.ir import Graph

__all__ = [
    "ExecutorList",
    "ExecutorState",
    "Network",
    "NetworkNode",
    "draw",
    "executor",
    "executor_drawing",
    "executors",
]

DRAWINGS = {
    "folded": (True, False),
    "folded-with-parameters": (True, True),
    "unfolded": (False, False),
    "unfolded-with-parameters": (False, True),
}
"""For each drawing: whether it folds repeated blocks, and whether it shows learnt parameters."""


class NetworkOutput(BaseModel):
    """An output of a node: its name, and its shape and type as far as they follow."""

    name: str
    shape: list[int] | None
    datatype: str | None


class NetworkNode(BaseModel):
    """A node: a call of an operator, or a variable."""

    name: str
    op: str | None
    kind: Literal["operator", "argument", "auxiliary"]
    attrs: dict[str, str]
    source: str | None = Field(description="The user's line that made the node, if known.")
    inputs: list[tuple[int, int]] = Field(description="Pairs of a node's number and the number of its output.")
    outputs: list[NetworkOutput]


class ExecutorState(BaseModel):
    """An executor of a session: its size, and how often it ran."""

    id: int
    nodes: int
    outputs: list[str]
    forwards: int
    backwards: int
    arena_bytes: int
    output_bytes: int
    packed_bytes: int = Field(description="Bytes of packed weights that stay between runs.")
    steps: int = Field(description="Number of operator calls in forward and backward together.")


class ExecutorList(BaseModel):
    """Executors, by their ids."""

    executors: list[ExecutorState]


class Network(ExecutorState):
    """An executor and its network; no tensor's values."""

    network: list[NetworkNode] = Field(description="The nodes, each after its inputs.")
    heads: list[tuple[int, int]]


def executors(engine: Engine, call: Call, done: Done) -> None:
    """The executors of a session: how large they are, and how often they ran."""
    table = engine.sessions.get(call.owner, call.parameters["id"]).table
    done(Answer({"executors": [_state(id, bound) for id, bound in table.bound_plans()]}))


def executor(engine: Engine, call: Call, done: Done) -> None:
    """The network of an executor: its nodes, and the shapes and types of what they put out."""
    id, bound = _executor(engine, call)
    drawn = network(bound.plan.graph, variables_of(bound.plan))
    done(Answer({**_state(id, bound), "network": drawn["nodes"], "heads": drawn["heads"]}))


def executor_drawing(engine: Engine, call: Call, done: Done) -> None:
    """Draw an executor's network as SVG: `folded` or `unfolded` blocks, `-with-parameters` or without."""
    _, bound = _executor(engine, call)
    done(draw(call.parameters["drawing"], bound.plan.graph, variables_of(bound.plan)))


def draw(name: str, graph: Graph, variables: Variables) -> Answer:
    """The answer that draws a network.

    Args:
        name: one of DRAWINGS.
        graph, variables: of the network.

    Raises:
        NotFoundError: no drawing is called so.
        LimitError: the network, or the drawing of it, is too large.
    """
    if name not in DRAWINGS:
        raise NotFoundError(f"drawing {name[:40]!r}: expected one of {', '.join(DRAWINGS)}")
    fold, parameters = DRAWINGS[name]
    svg = drawing(graph, variables, fold=fold, parameters=parameters)
    return Answer({}, text=svg.encode(), content_type="image/svg+xml")


def _executor(engine: Engine, call: Call) -> tuple[int, Any]:
    """The executor that a call names: its number and what is bound."""
    table = engine.sessions.get(call.owner, call.parameters["id"]).table
    text = call.parameters["executor"]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise NotFoundError(f"executor {text[:40]!r}: expected the number of one of this session's, got another text")
    return int(text), table.executor_entry(int(text)).executor


def _state(id: int, bound: Any) -> dict[str, Any]:
    graph, memory = bound.plan.graph, bound.memory
    return {
        "id": id,
        "nodes": len(graph.nodes),
        "outputs": graph.output_names,
        "forwards": bound.forwards,
        "backwards": bound.backwards,
        "arena_bytes": memory.arena_bytes,
        "output_bytes": memory.output_bytes,
        "packed_bytes": memory.packed_bytes,
        "steps": memory.steps,
    }
