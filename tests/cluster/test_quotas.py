"""Owners' quotas over all nodes: in sum they are never exceeded by more than one node's share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_protocol.errors import BadRequestError
from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import OwnerQuotas, PlacedSession, Refused, Waiting
from opbox_service.cluster.nodes import USUAL_BYTES

from .small_cluster import GIB, MIB, PretendNode, SmallCluster


def cluster_of(nodes: str, *, pushes: bool = True, **limits: float) -> SmallCluster:
    cluster = SmallCluster(Controller(OwnerQuotas(limits=limits), pushes=pushes))
    for name in nodes:
        cluster.join(name, cpu=GIB)
    return cluster


def sessions_of(node: PretendNode, owner: str) -> int:
    return sum(session.owner == owner for session in node.sessions.values())


def test_the_quota_is_used_up_to_the_last_session() -> None:
    cluster = cluster_of("abc", sessions=5)
    for _ in range(5):
        cluster.open()
        cluster.settle(2)
    refused = cluster.place()
    assert isinstance(refused, Refused)
    assert refused.status == 429
    assert "sessions: expected at most 5 of an owner on all nodes together, got 5 in use and more" in refused.reason
    assert isinstance(cluster.place("bob"), PlacedSession), "another owner's quota is another"


def test_an_ended_session_makes_way_for_another() -> None:
    cluster = cluster_of("ab", sessions=1)
    session = cluster.open()
    cluster.settle()
    assert isinstance(cluster.place(), Refused)
    cluster.end(session)
    cluster.settle(2)
    cluster.open()


def test_what_a_node_does_not_use_goes_to_another() -> None:
    cluster = cluster_of("ab", sessions=64)
    on_a = [cluster.open() for _ in range(20)]
    cluster.settle(3)
    for session in on_a:
        cluster.end(session)
    cluster.settle(3)
    assert cluster.controller.shares.allowed("ann", "sessions") <= 8
    assert all(node.shares.get("ann", {}).get("sessions", 0) <= 8 for node in cluster.nodes.values())


def test_a_share_that_was_taken_away_is_free_only_once_the_node_has_the_lower_one() -> None:
    cluster = cluster_of("ab", sessions=8)
    wishes = [cluster.open() for _ in range(8)]
    cluster.settle(2)
    lower = wishes[0].partition("-")[0]
    cluster.end(wishes[0])
    node = cluster.nodes[lower]
    before = cluster.controller.shares.allowed("ann", "sessions")
    assert before == 8
    cluster.controller.report(lower, node.report(), cluster.now)  # the orders are on their way
    assert cluster.controller.shares.allowed("ann", "sessions") == 8


def test_a_push_that_comes_late_does_not_raise_a_share_again() -> None:
    cluster = cluster_of("a", sessions=8)
    wish = cluster.wish()
    place = cluster.controller.place(wish, cluster.now)
    assert isinstance(place, PlacedSession)
    assert place.shares["ann"]["sessions"] >= 1
    cluster.controller.cancel(wish.id, cluster.now)
    cluster.settle(3)
    node = cluster.nodes["a"]
    assert node.shares["ann"]["sessions"] == 0
    node.take(place)
    assert node.shares["ann"]["sessions"] == 0


def test_who_was_refused_on_a_node_gets_a_share_there() -> None:
    cluster = cluster_of("ab", sessions=3)
    cluster.nodes["b"].refused.add("ann")
    cluster.settle()
    assert cluster.nodes["b"].shares["ann"]["sessions"] == 1
    cluster.settle(3)
    assert cluster.nodes["b"].shares["ann"]["sessions"] == 0


def test_a_controller_that_died_gives_all_shares_anew() -> None:
    cluster = cluster_of("a", sessions=4)
    cluster.open()
    cluster.settle(2)
    state = cluster.controller.dump()
    cluster.open()
    cluster.settle()
    node = cluster.nodes["a"]
    had = node.shares["ann"]["sessions"], node.orders, node.revisions["ann"]
    cluster.controller = Controller.load(state)
    cluster.controller.resume(cluster.now)
    assert cluster.controller.shares.unconfirmed("ann", "a") > had[1]
    cluster.settle()
    assert node.revisions["ann"] > had[2]
    cluster.settle()
    assert node.shares["ann"]["sessions"] == cluster.controller.shares.shares("ann", "a")["sessions"]
    assert not cluster.controller.shares.unconfirmed("ann", "a")


def test_without_pushes_a_session_waits_until_its_node_has_the_share() -> None:
    cluster = cluster_of("a", pushes=False, sessions=16)
    wish = cluster.wish()
    waiting = cluster.controller.place(wish, cluster.now)
    assert isinstance(waiting, Waiting)
    assert "is being told the owner's share" in waiting.reason
    cluster.settle(2)
    place = cluster.controller.place(wish, cluster.now)
    assert place == PlacedSession("a", "http://a:8000", "cpu")
    assert cluster.nodes["a"].shares["ann"]["sessions"] >= 1
    assert isinstance(cluster.place(), PlacedSession), "the share has one more"


def test_a_declared_size_counts_before_the_session_uses_it() -> None:
    cluster = cluster_of("ab", memory_bytes=300 * MIB)
    cluster.open(bytes=200 * MIB)
    refused = cluster.place(bytes=200 * MIB)
    assert isinstance(refused, Refused)
    assert "memory_bytes" in refused.reason


def test_a_days_seconds_stay_used_when_their_node_is_lost_and_a_new_day_begins_anew() -> None:
    cluster = cluster_of("ab", worker_seconds=10)
    node = cluster.join("c", cpu=2 * GIB)
    cluster.open()
    node.used_seconds["ann"] = 10
    cluster.settle()
    cluster.controller.lost("c", cluster.now)
    assert isinstance(cluster.place(), Refused)
    del cluster.nodes["c"]
    cluster.now += 86400
    for name in "ab":
        cluster.controller.join(cluster.nodes[name].info, cluster.now)
    cluster.settle()
    assert isinstance(cluster.place(), PlacedSession)


def test_no_quotas_no_shares() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    place = cluster.place()
    assert isinstance(place, PlacedSession)
    assert (place.shares, place.number) == ({}, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": 0.0}, "weight: expected more than 0, got 0"),
        ({"weight": math.nan}, "weight: expected more than 0, got nan"),
        (
            {"limits": {"in_flight": 1}},
            "quotas: expected one of sessions, memory_bytes, worker_seconds, got 'in_flight'",
        ),
        ({"limits": {"sessions": -1}}, "quotas: sessions: expected at least 0, got -1"),
    ],
)
def test_quotas_that_are_none(fields: dict, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        OwnerQuotas(**fields)


steps = st.lists(
    st.tuples(st.sampled_from(["open", "open direct", "end", "report", "obey", "lost", "join"]), st.integers(0, 3)),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 12), steps=steps)
def test_the_sum_never_exceeds_the_quota_by_more_than_the_lost_nodes_share(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    """Nodes report and obey at any time; clients open where they like, as far as the node's share allows."""
    cluster = cluster_of("abcd", sessions=limit)
    on_their_way: dict[str, list] = {name: [] for name in cluster.nodes}
    cut_off: set[str] = set()
    for action, number in steps:
        cluster.now += 0.1
        name = "abcd"[number]
        node = cluster.nodes[name]
        if action == "open":
            wish = cluster.wish()
            place = cluster.controller.place(wish, cluster.now)
            if isinstance(place, PlacedSession):
                there = cluster.nodes[place.node]
                there.take(place)
                if sessions_of(there, "ann") < there.shares["ann"]["sessions"]:
                    cluster.start(place)
                else:  # somebody has opened one there without asking, and the node refuses
                    cluster.controller.cancel(wish.id, cluster.now)
        elif action == "open direct":
            if sessions_of(node, "ann") < node.shares.get("ann", {}).get("sessions", 0):
                cluster.start(PlacedSession(name, "", "cpu"))
        elif action == "end" and node.sessions:
            cluster.end(next(iter(node.sessions)))
        elif action == "report" and name not in cut_off:
            on_their_way[name].append(cluster.controller.report(name, node.report(), cluster.now))
        elif action == "obey" and on_their_way[name]:
            node.obey(on_their_way[name].pop(0))
        elif action == "lost" and not cut_off:
            cluster.controller.lost(name, cluster.now)
            cut_off.add(name)
        elif action == "join" and name in cut_off:
            cut_off.remove(name)
            node.sessions, node.shares, node.revisions, on_their_way[name] = {}, {}, {}, []
            cluster.controller.join(node.info, cluster.now)
        counted = sum(sessions_of(node, "ann") for name, node in cluster.nodes.items() if name not in cut_off)
        assert counted <= limit
        allowed = cluster.controller.shares.allowed("ann", "sessions")
        assert counted <= allowed + 1e-9 <= limit + 2e-9
        outside = sum(
            node.shares.get("ann", {}).get("sessions", 0) for n, node in cluster.nodes.items() if n in cut_off
        )
        assert sum(sessions_of(node, "ann") for node in cluster.nodes.values()) <= limit + outside


@settings(max_examples=60, deadline=None)
@given(opened=st.lists(st.sampled_from(["ann", "bob"]), max_size=30), ended=st.sets(st.integers(0, 29)))
def test_sums_are_those_of_the_shares(opened: list[str], ended: set[int]) -> None:
    cluster = cluster_of("abc", sessions=10, memory_bytes=float(GIB), worker_seconds=50.0)
    ids = []
    for owner in opened:
        place = cluster.place(owner)
        if isinstance(place, PlacedSession):
            ids.append(cluster.start(place, owner))
    cluster.settle()
    for number, id in enumerate(ids):
        if number in ended:
            cluster.end(id)
    cluster.settle(3)
    for owner in ("ann", "bob"):
        for quota, limit in {"sessions": 10, "memory_bytes": GIB, "worker_seconds": 50.0}.items():
            rows = [
                grant for name, kind, _, grant in cluster.controller.shares.grants() if (name, kind) == (owner, quota)
            ]
            allowed = cluster.controller.shares.allowed(owner, quota)
            assert allowed == pytest.approx(sum(grant.outstanding for grant in rows))
            assert allowed <= limit + 1e-6


def test_the_usual_size_of_a_session_is_no_part_of_its_owners_quota() -> None:
    cluster = cluster_of("a", memory_bytes=float(USUAL_BYTES // 2))
    assert isinstance(cluster.place(), PlacedSession)
