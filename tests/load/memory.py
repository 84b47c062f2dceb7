"""Memory of a server under load."""

from __future__ import annotations

import psutil

from tests.contract.live import Live

__all__ = ["taken"]


def taken(server: Live) -> int:
    """Bytes of the server's processes, shared buffers once."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in (server.process.pid, *server.workers()))
