"""How often nodes report: less often while the controller is busy, and what follows from that."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_service.cluster.controller import LOST_S, PENDING_S, Controller
from opbox_service.cluster.documents import NodeOrders, PlacedSession, Waiting
from opbox_service.cluster.node_actor import NodeActor
from opbox_service.cluster.report_pace import BUSY, LATE_S, MAX_REPORT_S, REPORT_S, ReportPace

from .small_cluster import GIB, SmallCluster


def adapted(pace: ReportPace, busy: float, behind: float = 0.0, seconds: int = 300) -> list[float]:
    """Let time pass; return the seconds between reports, second by second."""
    begin = int(pace.adapted) + 1
    rows = []
    for second in range(begin, begin + seconds):
        pace.adapt(float(second), busy, behind)
        rows.append(pace.report_s)
    return rows


def busy_cluster(seconds: int = 60) -> SmallCluster:
    """A cluster with a node a whose controller has had no time to spare, so that reports come rarely."""
    cluster = SmallCluster()
    cluster.join("a", gpu0=GIB)
    for _ in range(seconds):
        cluster.now += 1
        node = cluster.nodes["a"]
        node.obey(cluster.controller.report("a", node.report(), cluster.now))
        cluster.controller.tick(cluster.now, busy=1.0)
    assert cluster.controller.pace.report_s == MAX_REPORT_S
    node.obey(cluster.controller.report("a", node.report(), cluster.now))
    return cluster


@pytest.mark.parametrize(("busy", "behind"), [(1.0, 0.0), (0.2, 2 * LATE_S), (1.0, 2 * LATE_S)])
def test_a_controller_without_time_to_spare_hears_less_often_and_then_as_usual_again(
    busy: float, behind: float
) -> None:
    pace = ReportPace()
    slower = adapted(pace, busy, behind)
    assert slower == sorted(slower)
    assert slower[-1] == MAX_REPORT_S
    faster = adapted(pace, 0.1, seconds=600)
    assert faster[-1] == REPORT_S
    rising = next(n for n, report_s in enumerate(faster) if report_s < MAX_REPORT_S)
    assert faster[rising:] == sorted(faster[rising:], reverse=True)


@pytest.mark.parametrize("busy", [0.0, 0.3, 0.7])
def test_a_controller_with_time_to_spare_changes_nothing(busy: float) -> None:
    assert set(adapted(ReportPace(), busy)) == {REPORT_S}


def test_one_busy_second_changes_nothing() -> None:
    pace = ReportPace()
    adapted(pace, 0.3)
    adapted(pace, 1.0, seconds=1)
    assert set(adapted(pace, 0.3)) == {REPORT_S}


@settings(max_examples=200, deadline=None)
@given(reports=st.floats(0, 7), rest=st.floats(0, 0.5))
def test_the_pace_settles_and_stays(reports: float, rest: float) -> None:
    """Reports need `reports` cores when they come each second, and other work `rest` of one."""
    pace, now = ReportPace(), 0.0
    rows = []
    for _ in range(2000):
        now += 0.5
        wanted = rest + reports / pace.report_s
        pace.adapt(now, min(wanted, 1.0), 0.0)
        rows.append((pace.report_s, wanted))
    settled = rows[-400:]
    assert len(set(settled)) == 1
    report_s, wanted = settled[0]
    assert wanted <= BUSY or report_s == MAX_REPORT_S
    assert report_s == REPORT_S or rest + reports > 0.5, "nobody waits without a reason"


def test_nodes_are_told() -> None:
    cluster = busy_cluster()
    node = cluster.nodes["a"]
    assert cluster.controller.report("a", node.report(), cluster.now).report_s == MAX_REPORT_S
    assert cluster.controller.report("a", replace(node.report(), since=10**6), cluster.now).report_s == MAX_REPORT_S
    assert NodeOrders().report_s == REPORT_S


def test_a_node_that_was_told_to_report_rarely_is_lost_later() -> None:
    cluster = busy_cluster()
    lost = []
    for _ in range(int(LOST_S + MAX_REPORT_S) + 1):
        cluster.now += 1
        lost.append(cluster.controller.tick(cluster.now, busy=1.0))
    assert lost.index(["a"]) + 1 == LOST_S + MAX_REPORT_S


def test_a_node_that_was_told_to_report_rarely_may_do_so_when_the_controller_is_calm_again() -> None:
    cluster = busy_cluster()
    for _ in range(int(LOST_S + MAX_REPORT_S) - 1):
        cluster.now += 1
        assert cluster.controller.tick(cluster.now, busy=0.0) == []
    assert cluster.controller.pace.report_s < MAX_REPORT_S


def test_places_are_reserved_longer_and_those_who_wait_ask_less_often() -> None:
    cluster = busy_cluster()
    first = cluster.wish("ann", "gpu", bytes=GIB)
    assert isinstance(cluster.controller.place(first, cluster.now), PlacedSession)
    second = cluster.wish("bob", "gpu", bytes=GIB)
    begin = cluster.now
    for due in (begin + PENDING_S, begin + PENDING_S + MAX_REPORT_S - REPORT_S):
        while cluster.now < due:
            cluster.now += 1
            cluster.controller.report("a", cluster.nodes["a"].report(), cluster.now)
            cluster.controller.tick(cluster.now, busy=1.0)
        waiting = cluster.controller.place(second, cluster.now)
        assert isinstance(waiting, Waiting)
        assert waiting.retry_s == MAX_REPORT_S
    cluster.controller.tick(cluster.now + 1, busy=1.0)
    assert isinstance(cluster.controller.place(second, cluster.now + 1), PlacedSession)


def test_a_restored_controller_keeps_the_pace() -> None:
    cluster = busy_cluster()
    restored = Controller.load(cluster.controller.dump())
    assert restored.dump() == cluster.controller.dump()
    assert restored.pace.report_s == MAX_REPORT_S
    for second in range(1, int(LOST_S + MAX_REPORT_S)):
        assert restored.tick(cluster.now + second) == []
    wish = cluster.wish("ann", "gpu", bytes=2 * GIB)
    assert restored.place(wish, cluster.now) == cluster.controller.place(wish, cluster.now)


def test_a_state_without_a_pace_is_that_of_a_calm_controller() -> None:
    state = json.loads(busy_cluster().controller.dump())
    del state["pace"]
    for node in state["nodes"].values():
        del node["report_s"]
    restored = Controller.load(json.dumps(state).encode())
    assert restored.pace.report_s == restored.nodes["a"].report_s == REPORT_S


def test_a_node_that_reports_rarely_notices_at_once_that_its_server_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(tmp_path))
    node = NodeActor("a", {}, "", "127.0.0.1")
    node._joined, node._report_s = "http://127.0.0.1:1", 600.0
    assert node._server.url is None

    async def waited() -> None:
        await asyncio.wait_for(node._until_due(), 300.0)

    asyncio.run(waited())
    assert node._report_s == REPORT_S, "until it hears otherwise"
