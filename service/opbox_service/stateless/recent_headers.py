"""RecentHeaders: headers of frames that came before, parsed and validated, found by their bytes.

Who serves a model sends the same header with every request: graph, shapes and parameters. Parsing and validating it and
finding the graph's name took longer than a small graph runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from opbox_protocol.wire import TensorPlace

from .graph_cache import RecurringGraph

__all__ = ["LARGEST", "ReadHeader", "RecentHeaders"]

LARGEST = 1 << 14
"""Maximum bytes of a cached header; parsed, it takes about twenty times as much."""
MAX_HEADERS = 64
"""Number of headers to cache."""


class ReadHeader(NamedTuple):
    """A header that has been read.

    Attributes:
        body: its JSON as the route's model, which nobody changes.
        places: where the tensors lie behind it.
        size: bytes of the whole frame.
    """

    body: Any
    places: Sequence[TensorPlace]
    size: int


class RecentHeaders:
    """A cache of owners' parsed headers, for many threads; the owner with most of them loses the oldest one."""

    def __init__(self) -> None:
        self._headers: dict[tuple[str, str, bytes], ReadHeader] = {}

    def get(self, owner: str, path: str, text: bytes, size: int) -> ReadHeader | None:
        """Return the stored header of an owner's frame of `size` bytes with this text; None where there is none."""
        header = self._headers.get((owner, path, text))
        return header if header is not None and header.size == size else None

    def keep(self, owner: str, path: str, text: bytes, header: ReadHeader) -> ReadHeader:
        """Store the header, unless it holds values of tensors, and return it."""
        if any(place.size is None for place in header.places):
            return header
        if isinstance(getattr(header.body, "graph", None), dict):
            body = header.body.model_copy(update={"graph": RecurringGraph(header.body.graph)})
            header = header._replace(body=body)
        while len(self._headers) >= MAX_HEADERS:
            keys = list(self._headers)
            ((loser, _),) = Counter(key[0] for key in keys).most_common(1)
            self._headers.pop(next(key for key in keys if key[0] == loser), None)
        self._headers[owner, path, text] = header
        return header
