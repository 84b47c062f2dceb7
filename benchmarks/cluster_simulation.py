"""The cluster's controller alone, with nodes and clients that are simulated: how many it can decide for.

    python benchmarks/cluster_simulation.py                                   # 10,000 nodes, a million sessions
    python benchmarks/cluster_simulation.py --nodes 1000 --sessions 100000    # a tenth

Only the controller's calls are real; the processor time that each takes (of its thread, so that other programs hardly
change it) moves the simulated clock, as if the controller had one core and its callers stood in a line. The trace:

- Nodes have two GPUs of 80 GiB each and report as many seconds after their last report was answered as the answer
  says: one, or more while the controller is busy.
- Sessions arrive as a Poisson process, evenly but for the sixth tenth of the time, in which twice as many come. They
  want a GPU, declare 1 to 64 GiB (log-normal, median 5 GiB), use half of it, and last for exponential times with a
  mean of a fifth of the whole. 1,000 owners: the n-th wants a share in proportion to 1 / n; every tenth has weight 4.
  An owner may have a fiftieth of all sessions at a time.
- Who has to wait asks again after as many seconds as the answer says.
- One node of 500 dies, at random times, and one rack of 40 in 10,000 nodes at seven tenths of the time. A dead node
  comes back empty after a tenth of the time. Sessions that a node loses are asked for again at once.

The table's "staleness" is the age of what the controller knows of a node when the next report is taken; "answer" is the
time from a client's question to its answer, "wait" from its first question to its place.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.controller_state import SAVE_PAUSE
from opbox_service.cluster.documents import (
    NodeInfo,
    NodeReport,
    OwnerQuotas,
    PlacedSession,
    Refused,
    SessionReport,
    SessionWish,
    Waiting,
)
from opbox_service.cluster.report_changes import ReportChanges

GIB = 1 << 30
GPUS, GPU_BYTES = 2, 80 * GIB
OWNERS = 1000
TICK_S = 0.5


@dataclass
class SimulatedNode:
    """A node: its sessions, and what is free."""

    info: NodeInfo
    free: dict[str, int]
    sessions: dict[str, SessionReport] = field(default_factory=dict)
    orders: int = 0
    alive: bool = True
    life: int = 0
    reported: float = -1.0
    changes: ReportChanges = field(default_factory=ReportChanges)

    def report(self) -> NodeReport:
        used: dict[str, dict[str, float]] = {}
        for session in self.sessions.values():
            row = used.setdefault(session.owner, {"sessions": 0})
            row["sessions"] += 1
        return NodeReport(dict(self.free), tuple(self.sessions.values()), used=used, orders=self.orders)


@dataclass
class Figures:
    """What is measured, by the name of the controller's call."""

    cost_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    staleness_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    longest_queue: int = 0
    report_s: float = 1.0
    dump_bytes: int = 0
    dump_s: float = 0.0
    load_s: float = 0.0


class Simulation:
    """Runs a trace against a controller.

    Args:
        nodes, sessions, seconds: how many, and for how long.
        seed: of the trace.
        clock: processor seconds so far, between whose readings a call of the controller is.
    """

    def __init__(
        self, nodes: int, sessions: int, seconds: float, seed: int, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._seconds = seconds
        owners = {f"owner{n}": 4.0 if n % 10 == 0 else 1.0 for n in range(OWNERS)}
        limits = {"sessions": max(sessions // 50, 1)}
        quotas = {owner: OwnerQuotas(weight, limits) for owner, weight in owners.items()}
        self.controller = Controller(OwnerQuotas(limits=limits), quotas, pushes=True)
        self._owners = list(owners)
        self._shares = [1 / (n + 1) for n in range(OWNERS)]
        self.figures = Figures()
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = self._ids = 0
        self._busy_until = self._spent = self._ticked = self._spent_before = self._save_due = 0.0
        self.nodes: dict[str, SimulatedNode] = {}
        for number in range(nodes):
            devices = {f"gpu:{gpu}": GPU_BYTES for gpu in range(GPUS)}
            name = f"n{number}"
            self.nodes[name] = SimulatedNode(NodeInfo(name, f"http://{name}:8000", devices), dict(devices))
        self._asked: dict[str, float] = {}
        self._plan(nodes, sessions)

    def _plan(self, nodes: int, sessions: int) -> None:
        chance, seconds = self._random, self._seconds
        for name in self.nodes:
            self._at(0.0, "join", name)
        for owner in chance.choices(self._owners, self._shares, k=sessions):
            at = chance.random() * 1.1
            at = at if at < 0.6 else (0.5 + (at - 0.6) if at < 0.7 else at - 0.1)  # twice as many in the sixth tenth
            nbytes = min(max(int(chance.lognormvariate(1.61, 0.7) * GIB), GIB), 64 * GIB)
            self._at(at * seconds, "ask", SessionWish(self._id(), owner, "gpu", nbytes))
        names = list(self.nodes)
        for name in chance.sample(names, max(nodes // 500, 1)):
            self._at(chance.random() * 0.9 * seconds, "die", name)
        for name in names[: nodes * 40 // 10_000]:
            self._at(0.7 * seconds, "die", name)
        self._at(TICK_S, "tick", None)

    def _id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def _at(self, when: float, kind: str, subject: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, kind, subject))

    def run(self) -> Figures:
        """Run the trace to its end."""
        while self._events:
            now, _, kind, subject = heapq.heappop(self._events)
            if now > self._seconds:
                break
            getattr(self, f"_{kind}")(subject, now)
        started = self._clock()
        state = self.controller.dump()
        self.figures.dump_s, self.figures.dump_bytes = self._clock() - started, len(state)
        started = self._clock()
        Controller.load(state)
        self.figures.load_s = self._clock() - started
        self.figures.outcomes["still waiting"] = len(self._asked)
        return self.figures

    def _call(self, name: str, now: float, call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """Call the controller; return its answer, and when that is there."""
        begin = max(now, self._busy_until)
        started = self._clock()
        answer = call(*arguments, begin)
        cost = self._clock() - started
        self.figures.cost_s[name].append(cost)
        self._spent += cost
        self._busy_until = begin + cost
        return answer, self._busy_until

    # -- nodes --------------------------------------------------------------------------------------------------

    def _join(self, name: str, now: float) -> None:
        node = self.nodes[name]
        node.alive, node.free, node.orders, node.reported = True, dict(node.info.devices), 0, -1.0
        node.life, node.changes = node.life + 1, ReportChanges()
        _, answered = self._call("join", now, self.controller.join, node.info)
        self._at(answered + self._random.random(), "report", (name, node.life))

    def _report(self, subject: tuple[str, int], now: float) -> None:
        name, life = subject
        node = self.nodes[name]
        if not node.alive or node.life != life:
            return
        orders, answered = self._call(
            "report",
            now,
            lambda report, begin: self.controller.report(name, report, begin, now),
            node.changes.of(node.report()),
        )
        node.changes.answered(orders)
        if node.reported >= 0:
            self.figures.staleness_s.append(answered - node.reported)
        node.reported = now
        node.orders = orders.number
        self.figures.report_s = max(self.figures.report_s, orders.report_s)
        self._at(answered + orders.report_s, "rejoin" if orders.rejoin else "report", subject)

    def _rejoin(self, subject: tuple[str, int], now: float) -> None:
        """A node that was taken for lost brings its sessions along."""
        name, life = subject
        node = self.nodes[name]
        if node.alive and node.life == life:
            self.figures.outcomes["nodes taken for lost"] += 1
            node.orders = 0
            _, answered = self._call(
                "rejoin", now, lambda report, begin: self.controller.join(node.info, begin, report), node.report()
            )
            self._at(answered + 1.0, "report", subject)

    def _die(self, name: str, now: float) -> None:
        node = self.nodes[name]
        if node.alive:
            node.alive = False
            self.figures.outcomes["nodes lost"] += 1
            for session in node.sessions.values():
                self.figures.outcomes["sessions lost"] += 1
                self._at(now, "ask", SessionWish(self._id(), session.owner, "gpu", 2 * session.bytes, session.id))
            node.sessions = {}
            self._at(now + self._seconds / 10, "join", name)

    def _tick(self, subject: None, now: float) -> None:
        begin = max(now, self._busy_until)
        busy = (self._spent - self._spent_before) / max(begin - self._ticked, 1e-3)
        self._ticked, self._spent_before = begin, self._spent
        _, answered = self._call("tick", now, lambda at: self.controller.tick(at, busy))
        if answered >= self._save_due:
            _, saved = self._call("save", answered, lambda at: self.controller.dump())
            self._save_due, answered = saved + SAVE_PAUSE * (saved - answered), saved
        self._at(answered + TICK_S, "tick", None)
        waiting = sum(demand.sessions for demand in self.controller.demand().values())
        self.figures.longest_queue = max(self.figures.longest_queue, waiting)

    # -- clients ------------------------------------------------------------------------------------------------

    def _ask(self, wish: SessionWish, now: float) -> None:
        again = wish.id in self._asked
        first = self._asked.setdefault(wish.id, now)
        outcome, answered = self._call("place again" if again else "place", now, self.controller.place, wish)
        self.figures.answer_s.append(answered - now)
        if isinstance(outcome, Waiting):
            self._at(answered + outcome.retry_s, "ask", wish)
            return
        del self._asked[wish.id]
        if isinstance(outcome, Refused):
            self.figures.outcomes[f"refused {outcome.status}"] += 1
            return
        assert isinstance(outcome, PlacedSession)
        self._open(wish, outcome, first, answered)

    def _open(self, wish: SessionWish, place: PlacedSession, first: float, now: float) -> None:
        node = self.nodes[place.node]
        if not node.alive:  # nobody has noticed yet: the client is not answered there, and asks for another place
            self.figures.outcomes["dead node answered"] += 1
            self._asked[wish.id] = first
            avoid = (*wish.avoid, place.node)
            self._at(now, "ask", SessionWish(wish.id, wish.owner, wish.device, wish.bytes, wish.after, avoid))
            return
        self.figures.outcomes["placed"] += 1
        self.figures.wait_s.append(now - first)
        id = f"{place.node}-{wish.id}"
        node.sessions[id] = SessionReport(id, wish.owner, place.device, wish.bytes // 2)
        node.free[place.device] -= wish.bytes // 2
        self._at(now + self._random.expovariate(5 / self._seconds), "end", id)

    def _end(self, id: str, now: float) -> None:
        node = self.nodes[id.partition("-")[0]]
        session = node.sessions.pop(id, None)
        if session is not None:
            node.free[session.device] += session.bytes


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The median, the 99th percentile and the greatest of some values; zeros of none."""
    ordered = sorted(values) or [0.0]
    return {"median": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100], "max": ordered[-1]}


def table(figures: Figures, nodes: int, sessions: int, seconds: float, seed: int) -> str:
    """The figures as Markdown."""
    spent = {name: sum(costs) for name, costs in figures.cost_s.items()}
    busy = sum(spent.values()) / seconds
    lines = [
        f"{nodes} nodes, {sessions} sessions in {seconds:g} s, seed {seed}",
        "",
        "| call | number | median us | p99 us | max ms | of a core |",
        "|---|---|---|---|---|---|",
    ]
    for name, costs in sorted(figures.cost_s.items()):
        of = quantiles(costs)
        lines.append(
            f"| {name} | {len(costs)} | {of['median'] * 1e6:.0f} | {of['p99'] * 1e6:.0f} | {of['max'] * 1e3:.1f} | "
            f"{spent[name] / seconds:.3f} |"
        )
    lines += ["", "| seconds | median | p99 | max |", "|---|---|---|---|"]
    for name, values in {
        "staleness": figures.staleness_s,
        "answer": figures.answer_s,
        "wait": figures.wait_s,
    }.items():
        of = quantiles(values)
        lines.append(f"| {name} | {of['median']:.4f} | {of['p99']:.4f} | {of['max']:.3f} |")
    places = figures.cost_s["place"]
    largest = max(spent, key=lambda name: spent[name])
    lines += [
        "",
        f"- decisions a second of one core: {len(places) / max(sum(places), 1e-9):.0f}",
        f"- the controller's core is busy for {busy:.0%} of the time, most by `{largest}` "
        f"({spent[largest] / seconds:.0%})",
        f"- a node reports every {figures.report_s:.1f} s at most",
        f"- longest queue {figures.longest_queue}; {json.dumps(dict(sorted(figures.outcomes.items())))}",
        f"- state: {figures.dump_bytes / 1e6:.1f} MB, dumped in {figures.dump_s:.2f} s and loaded in "
        f"{figures.load_s:.2f} s",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one simulation and print its figures."""
    parser = argparse.ArgumentParser(description="The cluster's controller with simulated nodes and clients.")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(arguments)
    if options.nodes < 1 or options.sessions < 0 or not options.seconds >= 1:
        parser.error("expected --nodes of at least 1, --sessions of at least 0 and --seconds of at least 1")
    gc.disable()  # its passes over the simulated nodes and clients would count as the controller's
    figures = Simulation(options.nodes, options.sessions, options.seconds, options.seed).run()
    gc.enable()
    print(table(figures, options.nodes, options.sessions, options.seconds, options.seed))


if __name__ == "__main__":
    main()
