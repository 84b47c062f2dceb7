"""Graphs on their way to an engine: their text travels once, their hash afterwards, and again when it is forgotten."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from cachetools import LRUCache

from opbox_protocol.errors import MXNetError, NotFoundError
from opbox_protocol.routes import GRAPH_PREFIX
from opbox_protocol.signal_shield import whole
from opbox_protocol.symbol_json import content_hash
from opbox_protocol.transport import Transport

__all__ = ["Document", "GraphName", "KnownGraphs", "is_unknown", "known_graphs", "needed_names"]

T = TypeVar("T")
KEPT_NAMES = 1024
"""Number of graph names to remember per engine."""


class Document(dict[str, Any]):
    """A symbol's graph for an engine: symbol JSON.

    Args:
        json: the graph.
        own_code: whether operators of the user's own are in it: an engine keeps no such graph.
    """

    def __init__(self, json: Mapping[str, Any], own_code: bool = False) -> None:
        super().__init__(json)
        self.own_code = own_code

    @cached_property
    def name(self) -> GraphName:
        """The name that stands for the graph once an engine has it."""
        return GraphName(self)


class GraphName(str):
    """A graph's name, which remembers the graph: it is sent when the engine does not know the name.

    Args:
        document: the graph.
    """

    __slots__ = ("document",)
    document: Document

    def __new__(cls, document: Document) -> GraphName:
        name = super().__new__(cls, GRAPH_PREFIX + content_hash(document))
        name.document = document
        return name


class KnownGraphs:
    """The names of graphs that an engine has been sent: the last KEPT_NAMES that were used.

    It may have forgotten some, and each of its workers knows its own: `is_unknown` tells that from an answer.
    """

    def __init__(self) -> None:
        self._names: LRUCache[str, None] = LRUCache(KEPT_NAMES)
        self._lock = threading.Lock()

    @whole
    def reference(self, document: Document) -> GraphName | Document:
        """Return the graph's name for a request, or the graph itself the first time and with the user's own code."""
        if document.own_code:
            return document
        name = document.name
        with self._lock:
            known = name in self._names
            # Without the graph that the name remembers.
            self._names[str(name)] = None
        return name if known else document

    def ask(self, document: Document, call: Callable[[Any], T]) -> T:
        """The answer to `call`, which gets a reference to the graph, and the graph when the engine has forgotten it."""
        reference = self.reference(document)
        try:
            return call(reference)
        except NotFoundError as error:
            if not isinstance(reference, GraphName) or not is_unknown(reference, error):
                raise
        return call(document)


def needed_names(references: Iterable[GraphName | Document]) -> list[GraphName]:
    """The names, each once, that stand before the graph itself or without it."""
    brought: set[str] = set()
    needed = []
    for reference in references:
        name = reference if isinstance(reference, GraphName) else None if reference.own_code else reference.name
        if name is not None and name not in brought:
            brought.add(name)
            if name is reference:
                needed.append(name)
    return needed


def is_unknown(name: GraphName, error: MXNetError) -> bool:
    """Return whether an answer says that the engine has no graph of this name."""
    return isinstance(error, NotFoundError) and f"{GRAPH_PREFIX}{error.detail.get('graph')}" == name


_known: weakref.WeakKeyDictionary[Transport, KnownGraphs] = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def known_graphs(transport: Transport) -> KnownGraphs:
    """Return the known graphs of the engine behind a transport, for calls and sessions alike."""
    with _known_lock:
        return _known.setdefault(transport, KnownGraphs())


def _in_child() -> None:
    global _known, _known_lock
    _known, _known_lock = weakref.WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_in_child)
