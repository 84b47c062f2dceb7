"""Graphs by content: sent once, known by their sha256 afterwards."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import orjson
from cachetools import LRUCache

from opbox_protocol.errors import BadRequestError, NotFoundError
from opbox_protocol.routes import GRAPH_PREFIX
from opbox_protocol.symbol_json import check_size, content_hash

from ..graph.ir import Graph
from ..graph.json import load
from ..graph.subgraph import subgraphs_of
from ..task import graph_budget

__all__ = ["GraphCache", "RecurringGraph", "is_shareable"]

SPELT_NODES = 10_000
"""Maximum number of nodes of a document to look up by its text: writing a larger one blocks other threads."""
LARGEST_GRAPHS = 4
"""Number of graphs of maximum size that fit into the cache; of smaller graphs more fit."""
KEPT_NODES = 20_000
"""Number of nodes, over all graphs, that stay cached while unused (25 MB)."""
KEEP_S = 30.0
"""Seconds that further graphs stay cached while unused."""
NODE_BYTES = 1200
"""Approximate bytes per node."""
PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


@dataclass(slots=True)
class _CachedGraph:
    """A graph, the owner who sent it first, and when it was last used, by the monotonic clock."""

    graph: Graph
    owner: str
    used: float


class RecurringGraph(dict[str, Any]):
    """Symbol JSON that comes again as this very object, which nobody changes; its name is found once.

    Attributes:
        key: the name; "" before it is known.
    """

    __slots__ = ("key",)

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.key = ""


class GraphCache:
    """Loaded graphs. Where they are too many, the owner with most nodes loses the least recently used of his.

    A graph is named by the hash of its content, so who knows the name has had the graph: owners may share entries.

    Args:
        size: how many graphs to keep.
        max_nodes, max_edges: the most nodes of a graph, and inputs of its nodes together.
        kept_nodes: of all graphs, that stay though nobody uses them.
    """

    def __init__(
        self, size: int, max_nodes: int, max_edges: int | None = None, *, kept_nodes: int = KEPT_NODES
    ) -> None:
        self._kept_nodes = kept_nodes
        self._max_nodes = max_nodes
        self._max_edges = max_edges
        self._size = size
        self._graphs: OrderedDict[str, _CachedGraph] = OrderedDict()
        self._spelt: LRUCache[bytes, str] = LRUCache(size)
        self._lock = Lock()

    def put(self, document: Any, owner: str = "") -> tuple[str, Graph]:
        """Load a graph of an owner's unless it is here; its sha256 and the graph.

        Raises:
            GraphError, UnknownOperatorError, ParamError, LimitError: as `graph.json.load`.
        """
        if not isinstance(document, dict):
            kind = "nothing" if document is None else type(document).__name__
            raise BadRequestError(f"graph: expected MXNet's symbol JSON as an object, got {kind}")
        spelling = _spelling(document)
        known = self._known(spelling)
        if known is not None:
            return known
        check_size(document, self._max_nodes, self._max_edges)
        key = content_hash(document)
        graph = self._get(key)
        if graph is None:
            with graph_budget():
                graph = load(document, max_nodes=self._max_nodes, max_edges=self._max_edges)
            if not is_shareable(graph):
                return key, graph
            with self._lock:
                self._graphs[key] = _CachedGraph(graph, owner, time.monotonic())
                self._evict(key)
        if spelling is not None:
            with self._lock:
                self._spelt[spelling] = key
        return key, graph

    def resolve(self, reference: Any, owner: str = "") -> tuple[str, Graph]:
        """The graph that a request names or holds: "sha256:<hex>", or symbol JSON as an object.

        Raises:
            NotFoundError: no such graph is here (any more); send it again.
        """
        if type(reference) is RecurringGraph:
            graph = self._get(reference.key)
            if graph is None:
                reference.key, graph = self.put(dict(reference), owner)
            return reference.key, graph
        if not isinstance(reference, str):
            return self.put(reference, owner)
        if not reference.startswith(GRAPH_PREFIX):
            raise BadRequestError(f'graph: expected an object or "sha256:<hex>", got {reference[:80]!r}')
        key = reference[len(GRAPH_PREFIX) :]
        graph = self._get(key)
        if graph is None:
            raise NotFoundError(
                f"graph {reference[:80]!r} is not here: send it with PUT /v1/graphs", detail={"graph": key}
            )
        return key, graph

    def __len__(self) -> int:
        return len(self._graphs)

    def _known(self, spelling: bytes | None) -> tuple[str, Graph] | None:
        """The name and the graph of a document that came before in the same spelling."""
        if spelling is None:
            return None
        with self._lock:
            key = self._spelt.get(spelling)
        graph = None if key is None else self._get(key)
        return None if key is None or graph is None else (key, graph)

    def _get(self, key: str) -> Graph | None:
        with self._lock:
            entry = self._graphs.get(key)
            if entry is None:
                return None
            self._graphs.move_to_end(key)
            entry.used = time.monotonic()
            return entry.graph

    def sweep(self) -> int:
        """Drop large graphs that were unused for a while; return their approximate bytes."""
        horizon, dropped = time.monotonic() - KEEP_S, 0
        with self._lock:
            nodes = sum(len(entry.graph.nodes) for entry in self._graphs.values())
            while nodes - dropped > self._kept_nodes:
                key, oldest = next(iter(self._graphs.items()))
                if oldest.used > horizon:
                    break
                del self._graphs[key]
                dropped += len(oldest.graph.nodes)
        return dropped * NODE_BYTES

    def _evict(self, newest: str) -> None:
        """Drop graphs until they are not too many, nor have too many nodes together; not the newest."""
        nodes: Counter[str] = Counter()
        for entry in self._graphs.values():
            nodes[entry.owner] += len(entry.graph.nodes)
        while len(self._graphs) > 1 and (
            len(self._graphs) > self._size or nodes.total() > LARGEST_GRAPHS * self._max_nodes
        ):
            ((owner, _),) = nodes.most_common(1)
            old = (key for key, entry in self._graphs.items() if entry.owner == owner and key != newest)
            dropped = next(old, None) or next(key for key in self._graphs if key != newest)
            entry = self._graphs.pop(dropped)
            nodes[entry.owner] -= len(entry.graph.nodes)


def _spelling(document: dict[str, Any]) -> bytes | None:
    """A short name for the document as it is spelt, its keys in their order; None where that would take long.

    It costs a fifth of `content_hash`, which names a graph for everybody, whatever the order of its keys.
    """
    nodes = document.get("nodes")
    if type(nodes) is not list or len(nodes) > SPELT_NODES:
        return None
    try:
        return hashlib.sha256(orjson.dumps(document, option=PLAIN)).digest()
    except TypeError:  # what strict JSON cannot say; `load` has the sentence for it
        return None


def is_shareable(graph: Graph) -> bool:
    """True if a graph may be kept: operators of a user's own are one session's, and may be defined anew there."""
    for node in graph.calls.values():
        if node.op is not None and node.op.get_attr("TUserCode"):
            return False
        if not all(is_shareable(subgraph.graph) for subgraph in subgraphs_of(node)):
            return False
    return True
