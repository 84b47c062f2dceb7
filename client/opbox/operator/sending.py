"""Getting operators' code to the session that is to run it: once each, before the first graph that needs it.

An engine of this very process is handed the classes themselves (closures and breakpoints work); any other gets their
source. A node on its way names its code by hash in the hidden attribute `__code__`, so a name that is registered anew
leaves graphs alone that were composed before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .definition import CustomOperator, Definition

if TYPE_CHECKING:
    from ..session import Session
    from ..symbol import Symbol

__all__ = ["CODE", "ask_about", "define", "has_own_code", "reference_for"]

CODE = "__code__"
_sent: weakref.WeakKeyDictionary[Any, set[tuple[str, str, str]]] = weakref.WeakKeyDictionary()


def define(session: Session, definition: Definition, *, fresh: bool = True) -> str:
    """What the session calls the operator's code, which is sent to it unless it has been.

    Raises:
        SourceError: the source cannot be had.
    """
    brought: dict[str, Any]
    if session.in_process and definition.cls is not None:
        code, brought = definition.live_code(), {"live": definition.cls}
    else:
        bundle = definition.source(fresh=fresh)
        code, brought = bundle.sha256, {"bundle": bundle.json()}
    sent = _sent.setdefault(session, set())
    named = (definition.kind, definition.name, code)
    if named not in sent:
        session.record({"do": "define", "op": definition.kind, "op_type": definition.name, "sha256": code, **brought})
        sent.add(named)
    return code


def has_own_code(symbol: Symbol) -> bool:
    """Whether operators of the user's own are in the graph."""
    return any(isinstance(node.op, CustomOperator) for node in symbol._nodes())


def reference_for(session: Session, symbol: Symbol) -> Any:
    """What a command says in place of the symbol's graph: its name when the session knows it, or the graph itself."""
    document = graph_for(session, symbol)
    # Code may be defined anew under the same name, so the engine keeps no graphs with it.
    return document if has_own_code(symbol) else session.graphs.reference(document)


def ask_about(session: Session, symbol: Symbol, queries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of commands about the symbol's graph, which travels at most once with them; waits for them."""
    document = graph_for(session, symbol)
    if has_own_code(symbol):
        return session.ask_all([{**query, "graph": document} for query in queries])

    def ask(first: Any, name: Any) -> list[dict[str, Any]]:
        return session.ask_all([{**query, "graph": name if i else first} for i, query in enumerate(queries)])

    return session.graphs.ask(document, ask)


def graph_for(session: Session, symbol: Symbol) -> dict[str, Any]:
    """The symbol's graph for a session, which has been sent the code that it needs."""
    document = symbol._document()
    for told, node in zip(document["nodes"], symbol._nodes(), strict=True):
        if isinstance(node.op, CustomOperator):
            told["attrs"][CODE] = define(session, node.op.definition)
    return document
