"""ReportChanges: what a node's reports say once the controller has had one with everything."""

from __future__ import annotations

from dataclasses import replace

from .documents import NodeOrders, NodeReport, SessionReport

__all__ = ["ReportChanges"]


class ReportChanges:
    """Leaves out of a node's reports what the controller knows: sessions, models and use that have not changed.

    A report that was not answered may have been taken or not, so that the next one has everything.

    Example:
        >>> changes = ReportChanges()
        >>> changes.of(NodeReport({}, (SessionReport("a-1", "ann", "cpu", 5),))).sessions
        (SessionReport(id='a-1', owner='ann', device='cpu', bytes=5),)
        >>> changes.answered(NodeOrders(number=1))
        >>> changes.of(NodeReport({}, (SessionReport("a-1", "ann", "cpu", 5),))).sessions
        ()
    """

    def __init__(self) -> None:
        self._sent = NodeReport({})
        self._sessions: dict[str, SessionReport] = {}
        self._since = 0

    def of(self, report: NodeReport) -> NodeReport:
        """Return what to send; `answered` has to follow, unless there is no answer.

        Args:
            report: with everything.
        """
        before, since, sessions = self._sent, self._since, self._sessions
        self._sent, self._since = report, 0
        self._sessions = {session.id: session for session in report.sessions}
        if not since:
            return report
        used = {owner: row for owner, row in report.used.items() if before.used.get(owner) != row}
        return replace(
            report,
            sessions=tuple(session for session in report.sessions if sessions.get(session.id) != session),
            ended=tuple(id for id in sessions if id not in self._sessions),
            models={name: row for name, row in report.models.items() if before.models.get(name) != row},
            unloaded=tuple(name for name in before.models if name not in report.models),
            used=used | {owner: {} for owner in before.used if owner not in report.used},
            since=since,
        )

    def answered(self, orders: NodeOrders) -> None:
        """Take the answer to the report that was sent last."""
        self._since = 0 if orders.full or orders.rejoin else orders.number
