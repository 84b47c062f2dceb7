"""Reports with what has changed only: the controller knows the same as by full ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import (
    GoneSession,
    NodeOrders,
    NodeReport,
    OwnerQuotas,
    ReplicaReport,
    SessionReport,
)
from opbox_service.cluster.quotas import ANEW_REPORTS, QuotaShares
from opbox_service.cluster.report_changes import ReportChanges

from .small_cluster import GIB, MIB, SmallCluster


def report(**nbytes: int) -> NodeReport:
    """Sessions of ann's with so many bytes, by id."""
    sessions = tuple(SessionReport(id, "ann", "cpu", n) for id, n in nbytes.items())
    return NodeReport({"cpu": GIB - sum(nbytes.values())}, sessions, used={"ann": {"sessions": len(sessions)}})


def test_what_is_sent() -> None:
    changes = ReportChanges()
    first = report(s1=1, s2=2)
    assert changes.of(first) == first, "nobody knows anything before the first answer"
    changes.answered(NodeOrders(number=5))
    nothing = changes.of(first)
    assert (nothing.sessions, nothing.ended, nothing.used, nothing.since) == ((), (), {}, 5)
    changes.answered(NodeOrders(number=6))
    some = changes.of(report(s2=7, s3=3, s4=4))
    assert [session.id for session in some.sessions] == ["s2", "s3", "s4"]
    assert some.ended == ("s1",)
    assert some.used == {"ann": {"sessions": 3}}
    assert some.since == 6
    changes.answered(NodeOrders(number=7))
    models = {"net": ReplicaReport(("1",)), "old": ReplicaReport(("2",), 4)}
    with_models = changes.of(replace(report(s2=7, s3=3, s4=4), models=models))
    assert (with_models.models, with_models.unloaded) == (models, ())
    changes.answered(NodeOrders(number=8))
    fewer = {"net": ReplicaReport(("1",)), "new": ReplicaReport(())}
    changed = changes.of(replace(report(s2=7, s3=3, s4=4), models=fewer))
    assert (changed.models, changed.unloaded) == ({"new": ReplicaReport(())}, ("old",))
    changes.answered(NodeOrders(number=9))
    left = changes.of(NodeReport({"cpu": GIB}))
    assert left.ended == ("s2", "s3", "s4")
    assert left.used == {"ann": {}}


def test_everything_is_sent_when_the_answer_is_missing_or_says_so() -> None:
    changes = ReportChanges()
    whole = report(s1=1)
    for answer in (None, NodeOrders(number=3, full=True), NodeOrders(rejoin=True)):
        changes.of(whole)
        changes.answered(NodeOrders(number=2))
        assert changes.of(whole).since == 2
        if answer is not None:
            changes.answered(answer)
        assert changes.of(whole) == whole


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "open", "end", "grow", "settle", "settle", "deaf", "lose"]), st.integers(0, 20)
        ),
        max_size=40,
    )
)
def test_the_controller_knows_the_same_as_by_full_reports(steps: list[tuple[str, int]]) -> None:
    """`deaf`: the controller takes a report, and the node does not get its answer."""
    dumps = []
    for sparing in (False, True):
        cluster = SmallCluster()
        changes = {name: ReportChanges() for name in "ab"}
        for name in "ab":
            cluster.join(name, cpu=GIB)
        for step, number in [*steps, ("settle", 0)]:
            name = "ab"[number % 2]
            node = cluster.nodes[name]
            ids = list(node.sessions)
            if step == "open":
                cluster.open(f"owner{number % 3}", bytes=number % 4 * MIB, nbytes=MIB)
            elif step == "end" and ids:
                cluster.end(ids[number % len(ids)])
            elif step == "grow" and ids:
                id = ids[number % len(ids)]
                node.sessions[id] = node.sessions[id]._replace(bytes=number * MIB)
            elif step == "lose":
                cluster.controller.lost(name, cluster.now)
                node.orders = 0
                cluster.controller.join(node.info, cluster.now, node.report())
            elif step in ("settle", "deaf"):
                cluster.now += 1
                for other, its in cluster.nodes.items():
                    whole = its.report()
                    sent = changes[other].of(whole) if sparing else whole
                    orders = cluster.controller.report(other, sent, cluster.now)
                    if orders.full:
                        sent = changes[other].of(whole)
                        orders = cluster.controller.report(other, whole, cluster.now)
                    if step == "settle":
                        its.obey(orders)
                        changes[other].answered(orders)
        dumps.append(
            {
                name: (
                    dict(sorted(cluster.controller.nodes[name].sessions.items())),
                    cluster.controller.nodes[name].claims,
                    cluster.controller.nodes[name].free("cpu"),
                    cluster.controller.nodes[name].pending_needs(),
                    [cluster.controller.where(id) for id in node.sessions],
                )
                for name, node in cluster.nodes.items()
            }
        )
    assert dumps[0] == dumps[1]


def test_changes_to_what_the_controller_does_not_know_are_not_taken() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    session = cluster.open()
    cluster.settle()
    orders = cluster.controller.report(
        "a", replace(node.report(), sessions=(), ended=(session,), since=node.orders + 1), cluster.now
    )
    assert orders.full
    assert cluster.controller.where(session) == "http://a:8000"
    assert not cluster.controller.report("a", node.report(), cluster.now).full


def test_a_node_that_has_to_send_everything_counts_as_heard() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    cluster.settle()
    for _ in range(30):
        cluster.now += 1
        assert cluster.controller.report("a", replace(node.report(), since=10**6), cluster.now).full
        assert cluster.controller.tick(cluster.now) == []


def test_a_restored_controller_asks_for_everything_once() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    session = cluster.open()
    changes = ReportChanges()
    changes.of(node.report())
    changes.answered(cluster.controller.report("a", node.report(), cluster.now))
    restored = Controller.load(cluster.controller.dump())
    cluster.end(session)
    asked = restored.report("a", changes.of(node.report()), cluster.now)
    assert asked.full
    changes.answered(asked)
    changes.answered(restored.report("a", changes.of(node.report()), cluster.now))
    assert isinstance(restored.where(session), str), "its id says its node"
    assert restored.nodes["a"].sessions == {}
    assert changes.of(node.report()).since


def test_a_node_that_drains_is_empty_by_changes_too() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    session = cluster.open()
    changes = ReportChanges()
    cluster.controller.drain("a", cluster.now)
    for state in ("draining", "draining", "drained"):
        changes.answered(cluster.controller.report("a", changes.of(node.report()), cluster.now))
        assert cluster.controller.directory().nodes["a"].state == state
        if node.sessions and state == "draining":
            before, node.orders = node.orders, node.orders + 1
            if before:
                cluster.end(session)


def test_a_lost_nodes_changes_are_not_taken() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    session = cluster.open()
    cluster.settle()
    cluster.controller.lost("a", cluster.now)
    assert cluster.controller.report("a", replace(node.report(), since=node.orders), cluster.now).rejoin
    assert isinstance(cluster.controller.where(session), GoneSession)


def test_a_share_that_nobody_presses_for_follows_within_some_reports() -> None:
    """b ends what it has; a's share, whose use stays, may grow then."""
    shares = QuotaShares(OwnerQuotas(limits={"sessions": 16}))

    def settle(node: str, used: int, number: int) -> float:
        shares.settle(node, NodeReport({}, used={"ann": {"sessions": used}}, orders=number), {}, number + 1, 0.0, [])
        return shares.shares("ann", node).get("sessions", 0)

    for number in range(1, 2 * ANEW_REPORTS):
        settle("b", 14, number)
        before = settle("a", 1, number)
    for number in range(2 * ANEW_REPORTS, 4 * ANEW_REPORTS):
        settle("b", 1, number)
        after = settle("a", 1, number)
    assert before < after <= 3


def test_somebody_who_is_short_gets_unused_shares_with_the_next_reports() -> None:
    cluster = SmallCluster(Controller(OwnerQuotas(limits={"sessions": 8}), pushes=True))
    for name in "abc":
        cluster.join(name, cpu=GIB)
    changes = {name: ReportChanges() for name in "abc"}
    for _ in range(6):
        cluster.open()
    for _ in range(4):
        cluster.now += 1
        for name, node in cluster.nodes.items():
            orders = cluster.controller.report(name, changes[name].of(node.report()), cluster.now)
            changes[name].answered(orders)
            node.obey(orders)
        cluster.controller.tick(cluster.now)
    assert {cluster.open() is not None, cluster.open() is not None} == {True}
