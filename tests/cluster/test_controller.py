"""The controller: nodes that come and go, sessions that are looked for, and its state."""

import pytest

from opbox_protocol.errors import BadRequestError
from opbox_service.cluster.controller import LOST_S, STOPPING_S, Controller
from opbox_service.cluster.documents import (
    GoneSession,
    ModelTerms,
    NodeInfo,
    NodeReport,
    OwnerQuotas,
    PlacedSession,
    Refused,
    SessionWish,
    Waiting,
)

from .small_cluster import GIB, MIB, SmallCluster


def test_a_session_is_found_by_its_id() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    session = cluster.open()
    assert cluster.controller.where(session) == "http://a:8000", "its id says so, before the node has reported it"
    cluster.settle()
    assert cluster.controller.where(session) == "http://a:8000"


def test_a_lost_nodes_session_says_why_and_where_it_goes_on() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    session = cluster.open()
    cluster.settle()
    cluster.controller.lost("a", cluster.now)
    gone = cluster.controller.where(session)
    assert isinstance(gone, GoneSession)
    assert (gone.status, gone.moved) == (410, "")
    assert "node a was lost" in gone.reason
    cluster.controller.move(session, "b-0", "bob", cluster.now)
    assert cluster.controller.where(session) == gone, "it is not bob's"
    cluster.controller.move(session, "b-1", "ann", cluster.now)
    assert cluster.controller.where(session) == GoneSession(
        410, f"session {session}: node a was lost: it goes on as b-1", "b-1"
    )
    assert cluster.controller.directory().moved == {session: "b-1"}


def test_an_owner_moves_a_session_before_its_node_counts_as_lost() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    session = cluster.open()
    cluster.settle()
    for owner in ("bob", ""):
        cluster.controller.move(session, "b-1", owner, cluster.now)
    cluster.controller.move("nobodys", "b-1", "", cluster.now)
    assert cluster.controller.where(session) == "http://a:8000"
    cluster.controller.move(session, "b-1", "ann", cluster.now)
    cluster.settle()
    assert not node.sessions
    gone = cluster.controller.where(session)
    assert isinstance(gone, GoneSession)
    assert gone.moved == "b-1"


def test_a_session_that_nobody_knows() -> None:
    gone = Controller().where("b-123")
    assert isinstance(gone, GoneSession)
    assert gone.status == 404


def test_a_node_that_does_not_report_is_lost() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    cluster.join("b", cpu=GIB)
    cluster.settle()
    del cluster.nodes["a"]
    cluster.settle(int(LOST_S) + 1)
    assert cluster.controller.directory().nodes["a"].state == "lost"
    assert cluster.controller.report("a", NodeReport({"cpu": GIB}), cluster.now).rejoin


def test_a_controller_that_was_away_blames_no_node() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    cluster.settle()
    cluster.now += 10 * LOST_S
    restored = Controller.load(cluster.controller.dump())
    assert restored.tick(cluster.now) == []
    assert restored.tick(cluster.now + 1) == []
    assert not restored.report("a", cluster.nodes["a"].report(), cluster.now + 2).rejoin


def test_a_node_that_comes_back_ends_what_goes_on_elsewhere() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    moved, stays = cluster.open(), cluster.open()
    cluster.settle()
    cluster.controller.lost("a", cluster.now)
    cluster.controller.move(moved, "b-1", "ann", cluster.now)
    cluster.controller.join(node.info, cluster.now)
    cluster.settle()
    assert list(node.sessions) == [stays]
    assert cluster.controller.where(stays) == "http://a:8000"


def test_an_unknown_node_is_asked_to_join() -> None:
    assert Controller().report("a", NodeReport({}), 0.0).rejoin


def test_a_drained_node_gets_nothing_and_says_when_it_is_empty() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    cluster.join("b", cpu=GIB // 2)
    session = cluster.open()
    assert session.startswith("a-")
    cluster.controller.drain("a", cluster.now)
    cluster.settle()
    assert node.draining
    assert cluster.open().startswith("b-")
    assert cluster.controller.directory().nodes["a"].state == "draining"
    assert cluster.controller.where(session) == "http://a:8000"
    cluster.end(session)
    cluster.settle()
    assert cluster.controller.directory().nodes["a"].state == "drained"
    cluster.controller.join(node.info, cluster.now)
    assert cluster.open().startswith("a-")


def test_a_drained_nodes_sessions_go_on_elsewhere() -> None:
    cluster = SmallCluster()
    node = cluster.join("a", cpu=GIB)
    session = cluster.open()
    cluster.settle()
    cluster.join("b", cpu=GIB)
    cluster.controller.drain("a", cluster.now)
    cluster.settle()
    cluster.controller.leaving("a", cluster.now)
    del cluster.nodes["a"]  # its server stops, and does not report
    cluster.settle(int(LOST_S) + 5)
    assert cluster.controller.directory().nodes["a"].state == "draining"
    cluster.controller.left("a", cluster.now)
    cluster.settle(int(STOPPING_S) + int(LOST_S) + 5)
    assert cluster.controller.directory().nodes["a"].state == "drained"
    gone = cluster.controller.where(session)
    assert isinstance(gone, GoneSession)
    assert (gone.status, "node a was drained" in gone.reason) == (410, True)
    assert cluster.open().startswith("b-")
    cluster.controller.join(node.info, cluster.now)
    assert cluster.controller.directory().nodes["a"].state == "ready"


def test_a_node_whose_stop_does_not_end_is_lost() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    cluster.open()
    cluster.settle()
    cluster.controller.drain("a", cluster.now)
    cluster.controller.leaving("a", cluster.now)
    del cluster.nodes["a"]
    cluster.settle(int(STOPPING_S) + int(LOST_S) + 5)
    assert cluster.controller.directory().nodes["a"].state == "lost"


def test_a_drain_of_an_unknown_node() -> None:
    with pytest.raises(KeyError):
        Controller().drain("a", 0.0)


def test_the_directory_is_the_same_until_something_changes() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    before = cluster.controller.directory()
    cluster.open()
    cluster.settle()
    assert cluster.controller.directory(before.version) is before
    cluster.join("b", cpu=GIB)
    assert cluster.controller.directory(before.version).version > before.version


def test_a_restored_controller_decides_as_the_one_before() -> None:
    quotas = OwnerQuotas(limits={"sessions": 6, "worker_seconds": 100})
    cluster = SmallCluster(Controller(quotas, {"bob": OwnerQuotas(3.0)}, pushes=True))
    for name in "abc":
        cluster.join(name, cpu=GIB, gpu0=GIB)
    cluster.serve("resnet", ModelTerms(1, 3, device="gpu", bytes=100 * MIB))
    for owner in ["ann", "bob", "bob", "cy"]:
        cluster.open(owner, "gpu", bytes=200 * MIB)
    waiting = [cluster.wish(owner, "gpu", bytes=900 * MIB) for owner in ["ann", "bob", "cy", "bob", "dan"]]
    assert any(isinstance(cluster.controller.place(wish, cluster.now), Waiting) for wish in waiting)
    cluster.place("eve")
    cluster.settle(2)
    cluster.controller.lost("c", cluster.now)
    state = cluster.controller.dump()
    other = Controller.load(state)
    assert other.dump() == state
    for step in range(5):
        now = cluster.now + step
        for name in "ab":
            report = cluster.nodes[name].report()
            assert other.report(name, report, now) == cluster.controller.report(name, report, now)
        for wish in waiting:
            assert other.place(wish, now) == cluster.controller.place(wish, now)
        assert other.tick(now) == cluster.controller.tick(now)
        assert other.directory() == cluster.controller.directory()
        assert other.dump() == cluster.controller.dump()


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format": 1}', b"\xff"])
def test_a_state_that_is_none(text: bytes) -> None:
    with pytest.raises(BadRequestError, match=r"expected what Controller\.dump wrote"):
        Controller.load(text)


def test_a_newer_state() -> None:
    with pytest.raises(BadRequestError, match="expected format 1 or older, got 99, which a newer opbox wrote"):
        Controller.load(Controller().dump().replace(b'"format":1', b'"format":99'))


@pytest.mark.parametrize("name", ["", "A", "a-b", "a" * 17, "a b"])
def test_a_nodes_name_that_is_none(name: str) -> None:
    with pytest.raises(BadRequestError, match="expected a name of 1 to 16 of a-z and 0-9"):
        NodeInfo(name, "http://a", {})


def test_a_device_without_memory() -> None:
    with pytest.raises(BadRequestError, match="node a: cpu: expected bytes of memory, got 0"):
        NodeInfo("a", "http://a", {"cpu": 0})


def test_a_wish_of_fewer_bytes_than_none() -> None:
    with pytest.raises(BadRequestError, match="bytes: expected at least 0, got -1"):
        SessionWish("1", "ann", bytes=-1)


def test_no_nodes() -> None:
    refused = Controller().place(SessionWish("1", "ann"), 0.0)
    assert isinstance(refused, Refused)
    assert refused.status == 503


def test_asking_again_gives_the_same_place() -> None:
    cluster = SmallCluster()
    cluster.join("a", cpu=GIB)
    cluster.join("b", cpu=GIB)
    wish = cluster.wish()
    place = cluster.controller.place(wish, cluster.now)
    assert isinstance(place, PlacedSession)
    assert cluster.controller.place(wish, cluster.now) == place
