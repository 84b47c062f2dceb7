"""Graphs of owners by content: sent once, known to their owner by their sha256 afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import orjson
from cachetools import LRUCache

from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError
from opbox_protocol.routes import GRAPH_PREFIX
from opbox_protocol.symbol_json import check_size, content_hash

from ..graph.ir import Graph
from ..graph.json import load
from ..graph.subgraph import subgraphs_of
from ..graph_store import MAX_GRAPH_BYTES, GraphStore
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
    """A graph, and when it was last used, by the monotonic clock."""

    graph: Graph
    used: float


class _OwnersGraphs:
    """The graphs of one owner, the least recently used first.

    Attributes:
        graphs: by name.
        nodes: of all graphs.
        spelt: their names by the spelling in which they came.
    """

    __slots__ = ("graphs", "nodes", "spelt")

    def __init__(self, size: int) -> None:
        self.graphs: OrderedDict[str, _CachedGraph] = OrderedDict()
        self.nodes = 0
        self.spelt: LRUCache[bytes, str] = LRUCache(size)

    @property
    def since(self) -> float:
        """When the least recently used graph was used."""
        return next(iter(self.graphs.values())).used


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
    """Loaded graphs. When there are too many, the owner with most of them loses the least recently used one.

    Owners share nothing: a graph that another owner has sent is unknown, and loading it takes as long as if nobody had.
    Otherwise a hash would give away somebody's network, and the time of a call that somebody has it.

    Args:
        size: how many graphs to keep, of all owners.
        max_nodes, max_edges: the most nodes of a graph, and inputs of its nodes together.
        kept_nodes: of all graphs, that stay though nobody uses them.
        store: has graphs that other servers were sent, and gets those that are sent here; None where there is none.
    """

    def __init__(
        self,
        size: int,
        max_nodes: int,
        max_edges: int | None = None,
        *,
        kept_nodes: int = KEPT_NODES,
        store: GraphStore | None = None,
    ) -> None:
        self._store = store
        self._kept_nodes = kept_nodes
        self._max_nodes = max_nodes
        self._max_edges = max_edges
        self._size = size
        self._owners: dict[str, _OwnersGraphs] = {}
        self._lock = Lock()

    def put(self, document: Any, owner: str) -> tuple[str, Graph]:
        """Load a graph of an owner's unless the owner has sent it; its sha256 and the graph.

        Raises:
            GraphError, UnknownOperatorError, ParamError, LimitError: as `graph.json.load`.
        """
        if not isinstance(document, dict):
            kind = "nothing" if document is None else type(document).__name__
            raise BadRequestError(f"graph: expected MXNet's symbol JSON as an object, got {kind}")
        spelling = _spelling(document)
        known = self._known(spelling, owner)
        if known is not None:
            return known
        check_size(document, self._max_nodes, self._max_edges)
        key = content_hash(document)
        graph, is_new = self._get(key, owner), False
        if graph is None:
            with graph_budget():
                graph = load(document, max_nodes=self._max_nodes, max_edges=self._max_edges)
            if not is_shareable(graph):
                return key, graph
            is_new = True
        with self._lock:
            self._keep(key, graph, spelling, owner)
        if is_new and self._store is not None:
            with contextlib.suppress(TypeError):  # what strict JSON cannot say stays here
                text = orjson.dumps(document, option=PLAIN)
                if len(text) <= MAX_GRAPH_BYTES:
                    self._store.save(owner, key, text)
        return key, graph

    def resolve(self, reference: Any, owner: str) -> tuple[str, Graph]:
        """The graph that an owner's request names or holds: "sha256:<hex>", or symbol JSON as an object.

        Raises:
            NotFoundError: the owner has sent no such graph, or it is here no more; send it again.
        """
        if type(reference) is RecurringGraph:
            graph = self._get(reference.key, owner)
            if graph is None:
                reference.key, graph = self.put(dict(reference), owner)
            return reference.key, graph
        if not isinstance(reference, str):
            return self.put(reference, owner)
        if not reference.startswith(GRAPH_PREFIX):
            raise BadRequestError(f'graph: expected an object or "sha256:<hex>", got {reference[:80]!r}')
        key = reference[len(GRAPH_PREFIX) :]
        graph = self._get(key, owner)
        if graph is None and self._store is not None:
            graph = self._stored(key, owner)
        if graph is None:
            raise NotFoundError(
                f"graph {reference[:80]!r} is not here: send it with PUT /v1/graphs", detail={"graph": key}
            )
        return key, graph

    def _stored(self, key: str, owner: str) -> Graph | None:
        """A graph that the owner sent to another server; None where there is none, or what is stored is none."""
        assert self._store is not None
        text = self._store.load(owner, key) if re.fullmatch(r"[0-9a-f]{64}", key) else None
        if text is None:
            return None
        try:
            document = orjson.loads(text)
            if not isinstance(document, dict):
                return None
            check_size(document, self._max_nodes, self._max_edges)
            if content_hash(document) != key:
                return None
            with graph_budget():
                graph = load(document, max_nodes=self._max_nodes, max_edges=self._max_edges)
        except (MXNetError, ValueError, RecursionError):
            return None
        if not is_shareable(graph):
            return None
        with self._lock:
            self._keep(key, graph, None, owner)
        return graph

    def __len__(self) -> int:
        return sum(len(own.graphs) for own in self._owners.values())

    @property
    def _nodes(self) -> int:
        return sum(own.nodes for own in self._owners.values())

    def _known(self, spelling: bytes | None, owner: str) -> tuple[str, Graph] | None:
        """The name and the graph of a document that the owner sent before in the same spelling."""
        if spelling is None:
            return None
        with self._lock:
            own = self._owners.get(owner)
            key = None if own is None else own.spelt.get(spelling)
        graph = None if key is None else self._get(key, owner)
        return None if key is None or graph is None else (key, graph)

    def _get(self, key: str, owner: str) -> Graph | None:
        with self._lock:
            own = self._owners.get(owner)
            entry = None if own is None else own.graphs.get(key)
            if own is None or entry is None:
                return None
            own.graphs.move_to_end(key)
            entry.used = time.monotonic()
            return entry.graph

    def _keep(self, key: str, graph: Graph, spelling: bytes | None, owner: str) -> None:
        own = self._owners.get(owner)
        if own is None:
            own = self._owners[owner] = _OwnersGraphs(self._size)
        if key not in own.graphs:
            own.graphs[key] = _CachedGraph(graph, time.monotonic())
            own.nodes += len(graph.nodes)
            self._evict(owner)
        if spelling is not None:
            own.spelt[spelling] = key

    def sweep(self) -> int:
        """Drop large graphs that were unused for a while; return their approximate bytes."""
        horizon, dropped = time.monotonic() - KEEP_S, 0
        with self._lock:
            while self._nodes > self._kept_nodes:
                owner = min(self._owners, key=lambda name: self._owners[name].since)
                if self._owners[owner].since > horizon:
                    break
                dropped += self._drop_oldest(owner)
        return dropped * NODE_BYTES

    def _evict(self, newest: str) -> None:
        """Drop graphs until they are not too many, nor have too many nodes together; not the last one of `newest`."""
        while True:
            count = len(self)
            if count <= 1 or (count <= self._size and self._nodes <= LARGEST_GRAPHS * self._max_nodes):
                return
            losers = [name for name, own in self._owners.items() if name != newest or len(own.graphs) > 1]
            self._drop_oldest(max(losers, key=lambda name: self._excess(name, by_count=count > self._size)))

    def _excess(self, owner: str, *, by_count: bool) -> tuple[int, float]:
        """By what it is decided who loses a graph: how much the owner has, and for how long it was unused."""
        own = self._owners[owner]
        return len(own.graphs) if by_count else own.nodes, -own.since

    def _drop_oldest(self, owner: str) -> int:
        """Drop the graph that an owner has not used for longest; return its number of nodes."""
        own = self._owners[owner]
        _, entry = own.graphs.popitem(last=False)
        nodes = len(entry.graph.nodes)
        own.nodes -= nodes
        if not own.graphs:
            del self._owners[owner]
        return nodes


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
