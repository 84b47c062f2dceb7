"""Sends operators' code to a session, once each, before the first graph that needs it.

An engine of this very process is handed the classes themselves (closures and breakpoints work); any other gets their
source. A node on its way names its code by hash in the hidden attribute `__code__`, so a name that is registered anew
leaves graphs alone that were composed before.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opbox_protocol.commands import Define, InferShape, InferType

from ..known_graphs import Document
from .definition import CustomOperator, Definition

if TYPE_CHECKING:
    from ..session import Session
    from ..symbol import Symbol

__all__ = ["CODE", "ask_about", "define", "forget_sent", "graph_for", "has_own_code"]

CODE = "__code__"
_sent: weakref.WeakKeyDictionary[Any, set[tuple[str, str, str]]] = weakref.WeakKeyDictionary()


def define(session: Session, definition: Definition, *, fresh: bool = True) -> str:
    """Return the session's name for the operator's code; sends the code unless the session has it.

    Raises:
        SourceError: the source cannot be had.
    """
    command: Define = {"do": "define", "op": definition.kind, "op_type": definition.name, "sha256": ""}
    if session.in_process and definition.cls is not None:
        code, command["live"] = definition.live_code(), definition.cls
    else:
        bundle = definition.source(fresh=fresh)
        code, command["bundle"] = bundle.sha256, bundle.json()
    sent = _sent.setdefault(session, set())
    named = (definition.kind, definition.name, code)
    if named not in sent:
        session.record({**command, "sha256": code})
        sent.add(named)
    return code


def forget_sent(session: Session) -> None:
    """The engine has nothing of what the session was sent: it has begun anew."""
    _sent.pop(session, None)


def has_own_code(symbol: Symbol) -> bool:
    """Return whether operators of the user's own are in the graph."""
    return any(isinstance(node.op, CustomOperator) for node in symbol._every_node())


def ask_about(session: Session, document: Document, queries: Sequence[InferShape | InferType]) -> list[dict[str, Any]]:
    """The results of commands about a graph, which travels at most once with them; waits for them."""
    commands = [query.copy() for query in queries]
    for command in commands:
        command["graph"] = session.graphs.reference(document)
    return session.ask_all(commands)


def graph_for(session: Session, symbol: Symbol) -> Document:
    """The symbol's graph for a session, which has been sent the code that it needs."""
    document = Document(symbol._document(), has_own_code(symbol))
    if document.own_code:
        for row, node in zip(_rows(document), symbol._every_node(), strict=True):
            if isinstance(node.op, CustomOperator):
                row["attrs"][CODE] = define(session, node.op.definition)
    return document


def _rows(document: Mapping[str, Any]) -> list[Any]:
    """The nodes of a document in the order of `Symbol._every_node`."""
    rows: list[Any] = []
    for row in document["nodes"]:
        for subgraph in row.get("subgraphs", ()):
            rows += _rows(subgraph)
        rows.append(row)
    return rows
