"""A worker's way to datasets: it has no files, so it asks the API process; StoreRequests is the other end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from ..dataset_store import Buffer, NamedDataset, absent
from ..sealed_files import write_sealed
from .remote_checkpoints import RemoteCheckpoints, mapped

__all__ = ["RemoteDatasets"]

ROWS = "opbox-rows"
ASKED = 1000
"""Number of blocks to ask for in one message."""
MAX_REFERENCE = 512
"""Maximum number of characters of a dataset's name, its owner's included."""


class RemoteDatasets:
    """See DatasetStore.

    Args:
        requests: asks the API process, and waits for its answers.
        send: sends a message to it, with descriptors.
    """

    def __init__(self, requests: RemoteCheckpoints, send: Callable[[dict[str, Any], tuple[int, ...]], None]) -> None:
        self._requests = requests
        self._send = send

    def missing(self, owner: str, blocks: Sequence[str]) -> list[int]:
        """See DatasetStore."""
        positions: list[int] = []
        for start in range(0, len(blocks), ASKED):
            part = list(blocks[start : start + ASKED])
            answer, _ = self._ask("missing", owner, "blocks", blocks=part)
            positions += [start + position for position in answer["value"]]
        return positions

    def keep(self, owner: str, blocks: Sequence[Buffer]) -> None:
        """See DatasetStore."""
        if not blocks or self._requests.closing:
            return
        fd = write_sealed(ROWS, blocks)
        try:
            message = {"kind": "rows", "do": "keep", "id": 0, "owner": owner, "name": "", "size": len(blocks[0])}
            self._send(message, (fd,))
        finally:
            os.close(fd)

    def put(self, owner: str, block: str, data: Buffer) -> None:
        """See DatasetStore."""
        fd = write_sealed(ROWS, [data])
        try:
            self._ask("put", owner, block, fds=(fd,))
        finally:
            os.close(fd)

    def load(self, owner: str, block: str) -> Buffer:
        """See DatasetStore."""
        return mapped(self._ask("load", owner, block)[1], f"block {block[:12]}…")

    def find(self, owner: str, reference: str) -> NamedDataset:
        """See DatasetStore."""
        if len(reference) > MAX_REFERENCE:
            raise absent(reference)
        data = mapped(self._ask("find", owner, reference)[1], f"dataset {reference[:64]!r}")
        return NamedDataset.from_json(json.loads(bytes(data)))

    def save(self, owner: str, name: str, dataset: NamedDataset) -> None:
        """See DatasetStore."""
        fd = write_sealed(ROWS, [json.dumps(dataset.to_json()).encode()])
        try:
            self._ask("save", owner, name, fds=(fd,))
        finally:
            os.close(fd)

    def _ask(
        self, do: str, owner: str, name: str, fds: tuple[int, ...] = (), **fields: Any
    ) -> tuple[dict[str, Any], int | None]:
        return self._requests.ask({"kind": "rows", "do": do, "owner": owner, "name": name, **fields}, fds)
