"""Which node gets a session, and whose turn it is when all are full."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_service.cluster.controller import ABANDONED_S, PENDING_S, Controller
from opbox_service.cluster.documents import Demand, OwnerQuotas, PlacedSession, Refused, SessionWish, Waiting
from opbox_service.cluster.free_memory import DevicePlace, FreeMemory
from opbox_service.cluster.nodes import USUAL_BYTES
from opbox_service.cluster.placement import MAX_OVERTAKEN, WishQueue
from opbox_service.cluster.session_places import SessionPlaces

from .small_cluster import GIB, MIB, SmallCluster


def full_cluster(**weights: float) -> tuple[SmallCluster, str]:
    """A node with one GPU, whose only session has all of it."""
    cluster = SmallCluster(Controller(quotas={owner: OwnerQuotas(weight) for owner, weight in weights.items()}))
    cluster.join("a", gpu0=GIB)
    session = cluster.open("zoe", "gpu", nbytes=GIB, bytes=GIB)
    cluster.settle()
    return cluster, session


def test_the_device_with_the_most_free_memory() -> None:
    cluster = SmallCluster()
    cluster.join("a", gpu0=GIB, gpu1=2 * GIB)
    cluster.join("b", gpu0=GIB, cpu=8 * GIB)
    place = cluster.place(device="gpu")
    assert place == PlacedSession("a", "http://a:8000", "gpu:1")
    place = cluster.place(device="gpu:0")
    assert isinstance(place, PlacedSession)
    assert place.device == "gpu:0"
    place = cluster.place(device="cpu")
    assert isinstance(place, PlacedSession)
    assert place.node == "b"


def test_sessions_spread_before_nodes_have_reported_them() -> None:
    cluster = SmallCluster()
    for name in "abcd":
        cluster.join(name, cpu=GIB)
    assert Counter(cluster.open().partition("-")[0] for _ in range(8)) == dict.fromkeys("abcd", 2)


def test_a_short_queue_goes_before_more_memory() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=8 * GIB).queue = 5
    cluster.join("b", cpu=GIB)
    cluster.settle()
    assert cluster.open().startswith("b-")


def test_a_declared_size_is_promised_until_the_session_ends() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    session = cluster.open(nbytes=MIB, bytes=GIB)
    cluster.settle(60)
    assert isinstance(cluster.place(), Waiting), "it uses 1 MiB now, and may use the rest at any time"
    cluster.end(session)
    cluster.settle()
    cluster.open()


def test_a_place_that_nobody_used_goes_to_another() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    cluster.place(bytes=GIB)
    wish = cluster.wish()
    assert isinstance(cluster.controller.place(wish, cluster.now), Waiting)
    cluster.settle(int(PENDING_S) + 2)
    assert isinstance(cluster.controller.place(wish, cluster.now), PlacedSession)


def test_a_place_that_the_node_refused_is_another() -> None:
    cluster = SmallCluster()
    for name in "ab":
        cluster.join(name, cpu=GIB)
    wish = cluster.wish()
    first = cluster.controller.place(wish, cluster.now)
    assert isinstance(first, PlacedSession)
    again = SessionWish(wish.id, wish.owner, avoid=(first.node,))
    second = cluster.controller.place(again, cluster.now)
    assert isinstance(second, PlacedSession)
    assert second.node != first.node


def test_a_full_cluster_answers_the_position() -> None:
    cluster, session = full_cluster()
    wishes = [cluster.wish("ann", "gpu", bytes=GIB) for _ in range(3)]
    answers = [cluster.controller.place(wish, cluster.now) for wish in wishes]
    assert [answer.position for answer in answers if isinstance(answer, Waiting)] == [1, 2, 3]
    assert "3 wait, and this one is about number 3" in answers[2].reason
    assert cluster.controller.demand() == {"gpu": Demand(3, 3 * GIB, GIB)}
    cluster.end(session)
    cluster.settle()
    assert isinstance(cluster.controller.place(wishes[0], cluster.now), PlacedSession)
    second = cluster.controller.place(wishes[1], cluster.now)
    assert isinstance(second, Waiting)
    assert second.position == 1


def test_a_cancelled_wish_makes_way() -> None:
    cluster, session = full_cluster()
    wishes = [cluster.wish("ann", "gpu", bytes=GIB) for _ in range(2)]
    for wish in wishes:
        cluster.controller.place(wish, cluster.now)
    cluster.controller.cancel(wishes[0].id, cluster.now)
    cluster.end(session)
    cluster.settle()
    assert isinstance(cluster.controller.place(wishes[1], cluster.now), PlacedSession)
    cluster.controller.cancel(wishes[1].id, cluster.now)
    assert isinstance(cluster.place("bob", "gpu", bytes=GIB), PlacedSession)


def test_a_wish_that_nobody_asks_for_is_forgotten() -> None:
    cluster, _ = full_cluster()
    cluster.place("ann", "gpu", bytes=GIB)
    cluster.settle(int(ABANDONED_S) + 2)
    assert cluster.controller.demand() == {}


def test_what_no_node_could_ever_have_is_refused() -> None:
    cluster, _ = full_cluster()
    refused = cluster.place("ann", "gpu", bytes=2 * GIB)
    assert refused == Refused(
        503,
        f"bytes: expected at most {GIB}, as the largest gpu of the nodes that take sessions has, got {2 * GIB}: ask "
        "for less, or join a node with more",
    )
    refused = cluster.place("ann", "tpu")
    assert isinstance(refused, Refused)
    assert "expected one that a node of the cluster has (gpu), got 'tpu'" in refused.reason


@pytest.mark.parametrize("end", ["lost", "drain"])
def test_a_wish_is_refused_when_its_only_large_enough_node_goes(end: str) -> None:
    cluster, _ = full_cluster()
    cluster.join("small", gpu0=GIB // 2)
    wish = cluster.wish("ann", "gpu", bytes=GIB)
    behind = cluster.wish("bob", "gpu", bytes=GIB)
    for waiting in (wish, behind):
        assert isinstance(cluster.controller.place(waiting, cluster.now), Waiting)
    getattr(cluster.controller, end)("a", cluster.now)
    for waiting in (behind, wish):
        answer = cluster.controller.place(waiting, cluster.now)
        assert isinstance(answer, Refused)
        assert f"expected at most {GIB // 2}" in answer.reason
    assert cluster.controller.demand() == {}


def test_a_session_of_unknown_size_does_not_wait_for_more_than_there_will_ever_be() -> None:
    """Models have nearly all memory of the only node."""
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    node.taken = GIB - USUAL_BYTES // 2
    cluster.settle()
    session = cluster.open(nbytes=0)
    cluster.settle()
    waiting = cluster.wish()
    assert isinstance(cluster.controller.place(waiting, cluster.now), Waiting), "a session's memory may become free"
    assert isinstance(cluster.place(bytes=USUAL_BYTES), Waiting)
    cluster.end(session)
    cluster.settle()
    assert isinstance(cluster.controller.place(waiting, cluster.now), PlacedSession)


def test_turns_go_by_weight() -> None:
    cluster, session = full_cluster(ann=3.0, bob=1.0)
    wishes = {}
    for number in range(80):
        wish = cluster.wish("bob" if number < 40 else "ann", "gpu", bytes=GIB)
        wishes[wish.id] = wish
        cluster.controller.place(wish, cluster.now)
    served = []
    for _ in range(40):
        cluster.end(session)
        cluster.settle()
        answers = {id: cluster.controller.place(wish, cluster.now) for id, wish in wishes.items()}
        (id,) = [id for id, answer in answers.items() if isinstance(answer, PlacedSession)]
        wish = wishes.pop(id)
        served.append(wish.owner)
        session = cluster.start(answers[id], wish.owner, GIB)
        cluster.settle()
    assert Counter(served) == {"ann": 30, "bob": 10}
    assert Counter(served[:8]) == {"ann": 6, "bob": 2}


def test_a_large_wish_is_overtaken_only_so_often() -> None:
    cluster = SmallCluster()
    cluster.join("a", gpu0=GIB)
    small = [cluster.open("zoe", "gpu", nbytes=GIB // 4, bytes=GIB // 4) for _ in range(4)]
    cluster.settle()
    large = cluster.wish("ann", "gpu", bytes=GIB)
    assert isinstance(cluster.controller.place(large, cluster.now), Waiting)
    overtook = 0
    for _ in range(4 * MAX_OVERTAKEN):
        if not small:
            break
        cluster.end(small.pop(0))
        cluster.settle()
        cluster.controller.place(large, cluster.now)
        answer = cluster.place("bob", "gpu", bytes=GIB // 4)
        if isinstance(answer, PlacedSession):
            overtook += 1
            small.append(cluster.start(answer, "bob", GIB // 4))
            cluster.settle()
    assert overtook == MAX_OVERTAKEN
    assert isinstance(cluster.controller.place(large, cluster.now), PlacedSession)


def test_an_owner_at_the_quota_does_not_hold_others_up() -> None:
    cluster = SmallCluster(Controller(OwnerQuotas(limits={"sessions": 1}), pushes=True))
    cluster.join("a", gpu0=GIB)
    session = cluster.open("ann", "gpu", nbytes=GIB, bytes=GIB)
    cluster.settle()
    assert isinstance(cluster.place("ann", "gpu", bytes=GIB), Refused)
    wish = cluster.wish("bob", "gpu", bytes=GIB)
    cluster.controller.place(wish, cluster.now)
    cluster.end(session)
    cluster.settle(2)
    assert isinstance(cluster.controller.place(wish, cluster.now), PlacedSession)


def test_a_full_clusters_queue_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new wish looks at no other one's, however many wait; a report at a few."""
    cluster, _ = full_cluster()
    for number in range(500):
        cluster.place(f"owner{number % 50}", "gpu", bytes=GIB)
    tried = []
    inner = SessionPlaces._try
    monkeypatch.setattr(SessionPlaces, "_try", lambda *a: tried.append(1) or inner(*a))
    for number in range(100):
        cluster.place(f"owner{number % 50}", "gpu", bytes=GIB)
    assert not tried
    cluster.settle()
    assert len(tried) <= 8


def test_a_report_that_frees_nothing_looks_at_no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = full_cluster()
    for number in range(10):
        cluster.place(f"owner{number}", "gpu", bytes=GIB)
    cluster.settle()
    tried = []
    inner = SessionPlaces._try
    monkeypatch.setattr(SessionPlaces, "_try", lambda *a: tried.append(1) or inner(*a))
    cluster.settle(3)
    assert not tried


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "end", "cancel", "settle", "settle", "lose", "long"]), st.integers(0, 30)
        ),
        max_size=60,
    )
)
def test_what_is_looked_at_only_when_memory_is_free_is_as_if_always(steps: list[tuple[str, int]]) -> None:
    """One controller looks at its queues at each report; the other one at what may fit."""
    always, sparing = SmallCluster(), SmallCluster()
    always.controller.places.serve = always.controller.places.serve_all  # type: ignore[method-assign]
    seen = []
    for cluster in (always, sparing):
        wishes: list[SessionWish] = []
        opened: list[str] = []
        outcomes: list[object] = []
        for name in "abc":
            cluster.join(name, gpu0=8 * MIB, gpu1=4 * MIB)
        for step, number in steps:
            if step == "ask":
                device = "gpu" if number % 4 else "gpu:1"
                wishes.append(cluster.wish(f"owner{number % 5}", device, bytes=(1 + number % 8) * MIB))
            elif step == "end" and opened:
                id = opened.pop(number % len(opened))
                cluster.nodes[id.partition("-")[0]].sessions.pop(id, None)
            elif step == "cancel" and wishes:
                cluster.controller.cancel(wishes.pop(number % len(wishes)).id, cluster.now)
            elif step == "lose":
                name = "abc"[number % 3]
                node = cluster.nodes[name]
                node.sessions.clear()
                cluster.controller.lost(name, cluster.now)
                cluster.controller.join(node.info, cluster.now)
            else:
                cluster.settle(number if step == "long" else 1)
            for wish in list(wishes):
                outcome = cluster.controller.place(wish, cluster.now)
                outcomes.append((wish.id, outcome))
                if not isinstance(outcome, Waiting):
                    wishes.remove(wish)
                    if isinstance(outcome, PlacedSession) and number % 3:  # others never open what they got
                        opened.append(cluster.start(outcome, wish.owner, wish.bytes))
        seen.append(outcomes)
    assert seen[0] == seen[1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["gpu:0", "gpu:1"]), st.none() | st.integers(0, 9)),
        max_size=60,
    ),
    st.integers(0, 9),
    st.sampled_from(["gpu", "gpu:0"]),
)
def test_free_memory_is_as_a_search_of_all(
    changes: list[tuple[str, str, int | None]], nbytes: int, wanted: str
) -> None:
    memory, rows = FreeMemory(), {}
    for node, device, free in changes:
        if free is None:
            memory.remove(node, device)
            rows.pop((node, device), None)
        else:
            memory.set(node, device, free, 9)
            rows[node, device] = free
        matching = [(n, d, f) for (n, d), f in rows.items() if wanted in ("gpu", d)]
        fits = sorted(((n, d, f) for n, d, f in matching if f >= nbytes), key=lambda row: (-row[2], row[0], row[1]))
        assert memory.best(wanted, nbytes, 3) == [DevicePlace(*row) for row in fits[:3]]
        assert memory.best(wanted, nbytes, 3, avoid=["a"]) == [DevicePlace(*r) for r in fits if r[0] != "a"][:3]
        assert memory.largest(wanted) == (9 if matching else 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=80))
def test_a_queue_serves_everyone_once_and_by_turns(entries: list[tuple[str, bool]]) -> None:
    queue, alive = WishQueue(), []
    for number, (owner, dropped) in enumerate(entries):
        queue.add(SessionWish(str(number), owner, bytes=1), 1.0)
        alive.append(str(number))
        if dropped:
            queue.drop(alive.pop(number % len(alive)))
    served: list[SessionWish] = []
    while queue:
        for line in queue.turns():
            served.append(queue.first(line))
            queue.served(line)
            break
    assert sorted(wish.id for wish in served) == sorted(alive)
    assert queue.bytes == 0
    for owner in "xyz":
        ids = [int(wish.id) for wish in served if wish.owner == owner]
        assert ids == sorted(ids), "an owner's own wishes go in their order"


def test_the_usual_size() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=3 * USUAL_BYTES)
    assert [type(cluster.place()) for _ in range(4)] == [PlacedSession] * 3 + [Waiting]
