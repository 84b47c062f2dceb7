"""ModelCode: the operators that came with a published model, in the process that serves it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opbox_ops.backend import Backend
from opbox_protocol.errors import BadRequestError

from ..models.own_code import RunWatcher
from ..quota import Budget
from .definitions import Definitions
from .operator import CODE

__all__ = ["ModelCode"]


class ModelCode:
    """The sources of a `-ops.json` file. One run of the model goes at a time, as operators may keep state.

    Args:
        text: the file's.
        backend, device, budget: where the model runs, and what counts its memory.
        watcher: is shown when operators run; None where nobody looks.

    Raises:
        BadRequestError: the file is none that `Symbol.save` writes.
    """

    def __init__(self, text: bytes, backend: Backend, device: str, budget: Budget, watcher: RunWatcher | None) -> None:
        self._definitions = Definitions(backend, backend.random(0), device, budget)
        self._watcher = watcher
        self._lock = threading.RLock()
        self._depth = 0
        self._codes: dict[str, str] = {}
        try:
            saved = json.loads(text)
            for node, entry in saved["nodes"].items():
                code = entry["source"]
                self._definitions.add(str(entry["op"]), str(entry["op_type"]), str(code), saved["sources"][code])
                self._codes[node] = str(code)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise BadRequestError(f"operators: expected a file as Symbol.save writes it, got {error!r:.200}") from None

    def document(self, text: bytes) -> Mapping[str, Any] | bytes:
        """A symbol's JSON whose nodes name their sources."""
        try:
            document = json.loads(text)
            for row in document["nodes"]:
                if row["name"] in self._codes and row["op"] != "null":
                    row.setdefault("attrs", {})[CODE] = self._codes[row["name"]]
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return text  # which its reader refuses
        return dict(document)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block in which graphs may have the operators, and no other run of the model goes."""
        with self._lock:
            self._depth += 1
            try:
                if self._watcher is not None and self._depth == 1:
                    self._watcher.began(True)
                with self._definitions.scope():
                    yield
            finally:
                self._depth -= 1
                if self._watcher is not None and not self._depth:
                    self._watcher.ended()

    def close(self) -> None:
        """Drop the sources' modules."""
        self._definitions.close()
