"""InnerValues: the values inside a network that requests may name, and the graphs that compute no more than some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

from cachetools import LRUCache

from opbox_ops.node import Entry, Node
from opbox_protocol.errors import BadRequestError
from opbox_protocol.near_names import near_names

from ..graph.ir import Graph

__all__ = ["InnerValues"]

KEPT_GRAPHS = 16
"""Number of graphs to keep, for sets of names that come again."""
SHOWN_NAMES = 20
"""Maximum number of names in an error."""


class InnerValues:
    """The outputs of a network's operators by name, as MXNet's `get_internals` names them. Safe for many threads.

    A name that several operators have is left out, as it says nothing.

    Args:
        graph: the network.
        outputs: names of its outputs.

    Attributes:
        entries: by name, in the graph's order; the network's own outputs are among them.

    Example:
        >>> InnerValues(graph, ["softmax_output"]).graph_of(["fc1_output"]).argument_names
        ['data', 'fc1_weight', 'fc1_bias']
    """

    def __init__(self, graph: Graph, outputs: Sequence[str]) -> None:
        self._graph = graph
        named = [(name, entry) for node in graph.nodes if node.op is not None for name, entry in _visible(node)]
        counts = Counter(name for name, _ in named)
        own = dict(zip(outputs, graph.heads, strict=True))
        inner = {name: entry for name, entry in named if counts[name] == 1 and name not in own}
        numbers = {name: graph.entry_id(entry) for name, entry in (inner | own).items()}
        self.entries = dict(sorted((inner | own).items(), key=lambda item: numbers[item[0]]))
        self._outputs = tuple(outputs)
        self._own = {name: entry for name, entry in self.entries.items() if name in own}
        self._graphs: LRUCache[tuple[str, ...], Graph] = LRUCache(KEPT_GRAPHS)
        self._needed: LRUCache[frozenset[str], tuple[str, ...]] = LRUCache(KEPT_GRAPHS)
        self._lock = Lock()

    def open_to(self, inside: bool) -> Mapping[str, Entry]:
        """What a caller may name: all of these, or the network's own outputs alone."""
        return self.entries if inside else self._own

    def check(self, subject: str, names: Iterable[str], *, inside: bool = True) -> None:
        """Raise BadRequestError for a name that is none of these; it tells names that are like it.

        Args:
            subject: what is named, for the error.
            inside: whether the caller may name values inside the network.
        """
        entries = self.open_to(inside)
        for name in names:
            if name not in entries:
                near = near_names(name[:80], entries) or list(self._outputs[:SHOWN_NAMES])
                raise BadRequestError(
                    f"{subject} {name[:80]!r} is none of the model's: expected {', '.join(near)}, or another name of "
                    "GET /v2/models/NAME/outputs"
                )

    def beyond_outputs(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names in the graph's order; none where all are outputs of the network, whose own graph computes them."""
        wanted = set(names)
        return () if wanted.issubset(self._outputs) else tuple(name for name in self.entries if name in wanted)

    def needed(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names whose graph is the smallest to compute these; none: the network's own is.

        Some outputs of the network have a graph of their own if that leaves out a node. Else requests for other outputs
        share the network's, so that they run together.
        """
        wanted = frozenset(names)
        if not wanted or wanted == set(self._outputs):
            return ()
        with self._lock:
            known = self._needed.get(wanted)
        if known is None:
            known = tuple(name for name in self.entries if name in wanted)
            if wanted.issubset(self._outputs) and len(self.graph_of(known).nodes) == len(self._graph.nodes):
                known = ()
            with self._lock:
                self._needed[wanted] = known
        return known

    def are_outputs(self, names: Iterable[str]) -> bool:
        """Whether these are the network's own outputs, or some of them."""
        return set(names).issubset(self._outputs)

    def names_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the heads of `graph_of(names)`."""
        return names or self._outputs

    def graph_of(self, names: tuple[str, ...]) -> Graph:
        """A graph with these values as its heads, and without what none of them needs; none: the network's own."""
        if not names:
            return self._graph
        with self._lock:
            graph = self._graphs.get(names)
            if graph is None:
                graph = self._graphs[names] = Graph([self.entries[name] for name in names])
        return graph


def _visible(node: Node) -> list[tuple[str, Entry]]:
    """The outputs of an operator's node that other operators may read, by name."""
    assert node.op is not None
    count = node.op.num_visible_outputs(node.params)
    return list(zip(node.output_names()[:count], node.entries()[:count], strict=True))
