"""Symbol JSON as a document: its text, its size, and the hash that stands for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import GraphError, LimitError

__all__ = ["check_size", "content_hash", "parse"]

DUMPED_ITEMS = 512
"""Number of list items to write at a time."""


def parse(document: Any) -> Any:
    """The document, of its JSON text or as it is; GraphError when the text is no JSON."""
    if not isinstance(document, str | bytes | bytearray):
        return document
    try:
        return json.loads(document)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"the graph is not JSON: {error}") from None


def check_size(graph: Mapping[str, Any], max_nodes: int | None, max_edges: int | None) -> None:
    """LimitError when the graph has more nodes than it may, or its nodes and heads more inputs together.

    Those of its subgraphs count. It looks at the lengths of lists alone; whatever is no list of the right kind passes,
    for `read` to refuse.
    """
    count = edges = 0
    graphs: list[Any] = [graph]
    while graphs:
        inner = graphs.pop()
        nodes = inner.get("nodes") if isinstance(inner, Mapping) else None
        if not isinstance(nodes, list):
            continue
        count += len(nodes)
        if max_nodes is not None and count > max_nodes:
            raise LimitError(f"the graph has {count} nodes: expected at most {max_nodes}")
        lists = [inner.get("heads")]
        for node in nodes:
            if type(node) is dict or isinstance(node, Mapping):
                lists.append(node.get("inputs"))
                subgraphs = node.get("subgraphs")
                graphs += subgraphs if isinstance(subgraphs, list) else ()
        edges += sum(len(entries) for entries in lists if isinstance(entries, list))
        if max_edges is not None and edges > max_edges:
            raise LimitError(f"the graph's nodes and heads have {edges} inputs together: expected at most {max_edges}")


def content_hash(document: str | bytes | Mapping[str, Any]) -> str:
    """sha256, in hexadecimal, of the document's canonical JSON: keys sorted, no spaces, UTF-8."""
    parsed = parse(document)
    digest = hashlib.sha256()
    for piece in _canonical(parsed) if _is_large(parsed) else [_dump(parsed)]:
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _is_large(document: Any) -> bool:
    """Return whether writing it takes so long that other threads should not wait for it."""
    return isinstance(document, Mapping) and any(
        type(value) is list and len(value) > DUMPED_ITEMS for value in document.values()
    )


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _canonical(document: Mapping[str, Any]) -> Iterator[str]:
    """The canonical JSON of an object in pieces, so that no other thread waits for the whole of a large one."""
    if any(type(key) is not str for key in document):
        yield _dump(document)
        return
    separator = "{"
    for key in sorted(document):
        value = document[key]
        yield f"{separator}{_dump(key)}:"
        separator = ","
        if type(value) is list and len(value) > DUMPED_ITEMS:
            for start in range(0, len(value), DUMPED_ITEMS):
                piece = _dump(value[start : start + DUMPED_ITEMS])
                yield f"{',' if start else '['}{piece[1:-1]}"
            yield "]"
        else:
            yield _dump(value)
    yield "}" if document else "{}"
