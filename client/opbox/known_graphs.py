"""Graphs that an engine has been sent: their text travels once, their hash afterwards."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from opbox_protocol.errors import NotFoundError
from opbox_protocol.routes import GRAPH_PREFIX, SESSION_GRAPHS
from opbox_protocol.symbol_json import content_hash

__all__ = ["KnownGraphs"]

T = TypeVar("T")


class KnownGraphs:
    """Names of the graphs that a session, or a server, is known to have: the last SESSION_GRAPHS that were used."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def reference(self, document: Mapping[str, Any]) -> Any:
        """What a request says in place of the graph: its name, or the graph itself when that is not known there."""
        name = GRAPH_PREFIX + content_hash(document)
        return name if self._has(name) else document

    def ask(self, document: Mapping[str, Any], call: Callable[[Any, Any], T]) -> T:
        """Make a call about a graph.

        Args:
            document: the graph.
            call: gets a reference to it (the graph itself, or its name), and its name for further use in the same call.
                It is called again with the graph when the engine has forgotten the name.
        """
        name = GRAPH_PREFIX + content_hash(document)
        if self._has(name):
            try:
                return call(name, name)
            except NotFoundError as error:
                if GRAPH_PREFIX + str(error.detail.get("graph")) != name:
                    raise
        answer = call(document, name)
        with self._lock:
            self._names[name] = None
            if len(self._names) > SESSION_GRAPHS:
                self._names.popitem(last=False)
        return answer

    def _has(self, name: str) -> bool:
        with self._lock:
            if name in self._names:
                self._names.move_to_end(name)
                return True
            return False
