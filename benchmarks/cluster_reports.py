"""What a node's report costs the controller, by the node's sessions: with all of them, or with what has changed.

    python benchmarks/cluster_reports.py

300 nodes report in turn. The sessions of each are of 40 owners, who have quotas; one is opened and one ended between
two reports, or none. Costs are processor time of the controller's thread; a report comes pickled, as Ray sends it.
"""

from __future__ import annotations

import pickle
import statistics
import time

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import NodeInfo, NodeReport, OwnerQuotas, SessionReport
from opbox_service.cluster.report_changes import ReportChanges

GIB = 1 << 30
NODES, OWNERS, SECONDS = 300, 40, 16


def session(node: str, number: int) -> SessionReport:
    return SessionReport(f"{node}-{number:032x}", f"owner{number % OWNERS}", "gpu:0", GIB)


def measure(sessions: int, churn: int, sparing: bool) -> tuple[float, float, int]:
    """Return the median microseconds to unpickle a report and to take it, and the bytes of the last one."""
    controller = Controller(OwnerQuotas(limits={"sessions": 10**6}), pushes=True)
    devices = {"gpu:0": 2 * (sessions + 1) * GIB}
    nodes = {f"n{number}": [session(f"n{number}", n) for n in range(sessions)] for number in range(NODES)}
    for name in nodes:
        controller.join(NodeInfo(name, f"http://{name}:8000", devices), 0.0)
    changes = {name: ReportChanges() for name in nodes}
    orders = dict.fromkeys(nodes, 0)
    unpickling, taking, size = [], [], 0
    for second in range(1, SECONDS + 1):
        for name, rows in nodes.items():
            rows[:] = rows[churn:] + [session(name, sessions + second * churn + n) for n in range(churn)]
            used: dict[str, dict[str, float]] = {}
            for row in rows:
                used.setdefault(row.owner, {"sessions": 0})["sessions"] += 1
            report = NodeReport(devices, tuple(rows), used=used, orders=orders[name])
            pickled = pickle.dumps(changes[name].of(report) if sparing else report)
            begin = time.thread_time()
            report = pickle.loads(pickled)
            middle = time.thread_time()
            answer = controller.report(name, report, float(second))
            if second > 2:
                unpickling.append(middle - begin)
                taking.append(time.thread_time() - middle)
            changes[name].answered(answer)
            orders[name], size = answer.number, len(pickled)
    return statistics.median(unpickling) * 1e6, statistics.median(taking) * 1e6, size


def main() -> None:
    """Print the table."""
    print("| sessions | opened and ended | report | bytes | unpickle us | take us |\n|---|---|---|---|---|---|")
    for sessions in (10, 100, 1000):
        for churn in (0, 1):
            for sparing in (False, True):
                unpickling, taking, size = measure(sessions, churn, sparing)
                kind = "changes" if sparing else "all"
                print(f"| {sessions} | {churn} | {kind} | {size} | {unpickling:.0f} | {taking:.0f} |", flush=True)


if __name__ == "__main__":
    main()
