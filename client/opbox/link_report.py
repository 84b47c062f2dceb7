"""LinkReport: what a part of a program took on the links to its servers, in one line."""

from __future__ import annotations

from typing import Any

from . import device_sessions
from .byte_counts import bytes_text

__all__ = ["LinkReport"]

_COUNTS = ("requests", "bytes_up", "bytes_down", "seconds", "link_seconds")


class LinkReport:
    """Requests, bytes and seconds of this process's sessions from here on."""

    def __init__(self) -> None:
        self._before = _stats()

    def log(self, logger: Any) -> None:
        """Write the line to a log, if something travelled."""
        line = self.line()
        if line is not None:
            logger.info("%s", line)

    def line(self) -> str | None:
        """Return what there was since the beginning; None where nothing travelled.

        Example:
            >>> report.line()
            'Link: 240 requests, 6.1 MiB up, 41.3 KiB down; the link took 12% of their time'
        """
        now = _stats()
        sums = dict.fromkeys(_COUNTS, 0.0)
        for session, stats in now.items():
            before = self._before.get(session, {})
            for name in _COUNTS:
                sums[name] += stats[name] - before.get(name, 0.0)
        if not sums["seconds"]:
            return None
        share = sums["link_seconds"] / sums["seconds"]
        return (
            f"Link: {sums['requests']:.0f} requests, {bytes_text(sums['bytes_up'])} up, "
            f"{bytes_text(sums['bytes_down'])} down; the link took {share:.0%} of their time"
        )


def _stats() -> dict[int, dict[str, float]]:
    """The counts of each session over a link, once what it has sent is answered: those of several GPUs are one."""
    sessions = {hash(session): session for session in device_sessions.sessions().values() if not session.in_process}
    for session in sessions.values():
        session.drain()
    return {key: session.stats for key, session in sessions.items()}
