"""Posts one batch of commands to the engine, and again while the engine takes no more."""

from __future__ import annotations

import time
from typing import Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.transport import Reply, Transport

from .known_graphs import needed_names
from .pending import CommandBatch

__all__ = ["LONGEST_PAUSE_S", "post_batch"]

PATIENCE = 60.0
"""Seconds to try again when the engine takes no more batches."""
PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
"""Seconds before the first retry, doubled each time, and their maximum."""


def post_batch(transport: Transport, batch: CommandBatch, wait: bool) -> Reply:
    """Send a batch; again while the engine has too much waiting, since no batch after it could run without it.

    A quota that has nothing left for longer than that is told at once. A batch that names a graph which the engine
    has forgotten is refused before any of it runs, and sent again with it.

    Args:
        transport: the engine.
        batch: the batch.
        wait: whether the engine answers when the batch has run.

    Raises:
        MXNetError: the engine refused it, or could not be reached.
    """
    header: dict[str, Any] = {"seq": batch.seq, "commands": batch.commands, "wait": wait}
    until, pause = 0.0, PAUSE_S
    while True:
        if batch.about_graphs:
            header["graphs"] = needed_names(command["graph"] for command in batch.about_graphs)
        try:
            return transport.call("POST", batch.path, header, batch.tensors)
        except MXNetError as error:
            if batch.put_graph(error):
                continue
            refused = error.status == 429 and "command" not in error.detail
            until = until or time.monotonic() + PATIENCE
            if not refused or time.monotonic() + error.detail.get("retry_after_s", 0) > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
