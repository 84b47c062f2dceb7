"""Which nodes count as lost, many at once, and those that come back with their sessions."""

from __future__ import annotations

import pytest

from opbox_service.cluster.controller import LOST_S, Controller
from opbox_service.cluster.documents import GoneSession, NodeReport, OwnerQuotas, PlacedSession, Refused, Waiting
from opbox_service.cluster.session_places import SessionPlaces

from .small_cluster import GIB, MIB, SmallCluster


def test_reports_that_wait_unread_lose_no_node() -> None:
    """Ticks are in time, but reports are read ten times as slowly as they come: b's wait behind a's."""
    cluster = SmallCluster()
    nodes = [cluster.join(name, cpu=GIB) for name in "ab"]
    cluster.settle()
    controller, start = cluster.controller, cluster.now
    for second in range(1, 10 * int(LOST_S)):
        now = start + second
        assert not controller.report("a", nodes[0].report(), now, arrived=start + second / 10).rejoin
        assert controller.tick(now) == []
    assert not controller.report("b", nodes[1].report(), now, arrived=start + LOST_S).rejoin


def test_a_dead_node_is_lost_though_others_are_read_late() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    cluster.join("b", cpu=GIB)
    cluster.settle()
    controller, start, lost = cluster.controller, cluster.now, []
    for second in range(1, 2 * int(LOST_S)):
        controller.report("a", node.report(), start + second, arrived=start + second - 3)
        lost.append(controller.tick(start + second))
    assert lost.index(["b"]) + 1 == LOST_S + 4, "3 s later than if reports were read at once"
    assert sum(map(len, lost)) == 1


def test_reports_read_at_once_again_end_the_delay() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    cluster.join("b", cpu=GIB)
    cluster.settle()
    controller = cluster.controller
    controller.report("a", node.report(), cluster.now + 1, arrived=cluster.now - 100)
    lost = []
    for second in range(2, int(LOST_S) + 2):
        controller.report("a", node.report(), cluster.now + second)
        lost += controller.tick(cluster.now + second)
    assert lost == ["b"]


def test_a_restored_controller_knows_how_late_it_reads() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    cluster.join("b", cpu=GIB)
    cluster.settle()
    now = cluster.now + LOST_S + 1
    for second in range(1, int(LOST_S) + 2):
        cluster.controller.report("a", node.report(), cluster.now + second, arrived=cluster.now)
    cluster.controller.tick(now)
    restored = Controller.load(cluster.controller.dump())
    assert restored.dump() == cluster.controller.dump()
    assert restored.tick(now) == []


def test_many_lost_nodes_are_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SmallCluster()
    for number in range(20):
        cluster.join(f"n{number}", gpu0=GIB)
        cluster.open("ann", "gpu", nbytes=GIB, bytes=GIB)
    cluster.join("last", cpu=GIB)
    cluster.settle()
    wishes = [cluster.wish("ann", "gpu", bytes=GIB) for _ in range(5)]
    assert all(isinstance(cluster.controller.place(wish, cluster.now), Waiting) for wish in wishes)
    served = []
    inner = SessionPlaces.serve_all
    monkeypatch.setattr(SessionPlaces, "serve_all", lambda self, now: served.append(now) or inner(self, now))
    lost: list[str] = []
    last = cluster.nodes["last"]
    for _ in range(int(LOST_S) + 1):
        cluster.now += 1
        cluster.controller.report("last", last.report(), cluster.now)
        lost += cluster.controller.tick(cluster.now)
    assert len(lost) == 20
    assert len(served) == 1
    for wish in wishes:
        assert isinstance(cluster.controller.place(wish, cluster.now), Refused), "no node with a GPU is left"


def test_a_node_that_comes_back_with_its_sessions_keeps_them() -> None:
    quotas = OwnerQuotas(limits={"sessions": 2})
    cluster = SmallCluster(Controller(quotas, pushes=True))
    node = cluster.join("a", cpu=GIB)
    sessions = [cluster.open(), cluster.open()]
    cluster.settle()
    cluster.controller.lost("a", cluster.now)
    assert all(isinstance(cluster.controller.where(session), GoneSession) for session in sessions)
    node.orders = 0
    cluster.controller.join(node.info, cluster.now, node.report())
    assert [cluster.controller.where(session) for session in sessions] == ["http://a:8000"] * 2
    refused = cluster.place()
    assert isinstance(refused, Refused), "both count for the owner's quota again"
    assert refused.status == 429
    cluster.settle()
    assert list(node.sessions) == sessions
    cluster.end(sessions[0])
    cluster.settle()
    assert isinstance(cluster.place(), PlacedSession)


def test_a_ready_node_that_joins_again_keeps_the_sessions_that_it_has() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    stays, ended = cluster.open(), cluster.open()
    cluster.settle()
    cluster.end(ended)
    cluster.controller.join(node.info, cluster.now, node.report())
    assert cluster.controller.where(stays) == "http://a:8000"
    gone = cluster.controller.where(ended)
    assert isinstance(gone, GoneSession)
    assert "node a has restarted" in gone.reason


def test_a_node_that_comes_back_gets_nothing_before_it_says_what_is_free() -> None:
    """Without its report, all of its memory would count as free, though its sessions may run on."""
    cluster = SmallCluster()
    node = cluster.join("a", gpu0=GIB)
    cluster.open("ann", "gpu", nbytes=GIB, bytes=GIB)
    cluster.settle()
    cluster.controller.lost("a", cluster.now)
    cluster.controller.join(node.info, cluster.now)
    wish = cluster.wish("bob", "gpu", bytes=500 * MIB)
    assert isinstance(cluster.controller.place(wish, cluster.now), Waiting), "it may fit, so it is not refused"
    restored = Controller.load(cluster.controller.dump())
    assert restored.dump() == cluster.controller.dump()
    assert isinstance(restored.place(wish, cluster.now), Waiting)
    cluster.settle()
    assert isinstance(cluster.controller.place(wish, cluster.now), Waiting)
    node.sessions.clear()
    cluster.settle()
    assert isinstance(cluster.controller.place(wish, cluster.now), PlacedSession)


def test_a_node_that_comes_back_empty_is_used_from_its_first_report_on() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    cluster.controller.lost("a", cluster.now)
    cluster.controller.join(node.info, cluster.now, NodeReport({"cpu": GIB}))
    assert isinstance(cluster.place(), PlacedSession)
