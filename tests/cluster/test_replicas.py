"""Models: how many replicas, on which nodes, and a new version replica by replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox_protocol.errors import BadRequestError
from opbox_service.cluster.documents import ModelTerms
from opbox_service.cluster.replicas import CALM_S, terms_of
from opbox_service.models.model_config import read_config

from .small_cluster import GIB, MIB, SmallCluster


def cluster_of(nodes: str) -> SmallCluster:
    cluster = SmallCluster()
    for name in nodes:
        cluster.join(name, cpu=GIB)
    return cluster


def serving(cluster: SmallCluster, name: str = "net") -> tuple[str, ...]:
    return cluster.controller.directory().models[name]


def test_as_many_replicas_as_asked_for_each_on_a_node_of_its_own() -> None:
    cluster = cluster_of("abc")
    cluster.serve("net", ModelTerms(2, 2))
    cluster.settle(3)
    assert len(serving(cluster)) == 2
    cluster.serve("net", ModelTerms(3, 3))
    cluster.settle(3)
    assert serving(cluster) == ("a", "b", "c")
    cluster.serve("net", ModelTerms(1, 1))
    cluster.settle(int(CALM_S) * 3)
    assert len(serving(cluster)) == 1


def test_fewer_nodes_than_replicas() -> None:
    cluster = cluster_of("a")
    cluster.serve("net", ModelTerms(2, 2))
    cluster.settle(3)
    assert serving(cluster) == ("a",)
    cluster.join("b", cpu=GIB)
    cluster.settle(3)
    assert serving(cluster) == ("a", "b")


def test_a_replica_goes_where_its_memory_is() -> None:
    cluster = cluster_of("a")
    cluster.join("b", gpu0=GIB)
    cluster.join("c", gpu0=2 * GIB)
    cluster.serve("net", ModelTerms(device="gpu", bytes=GIB + MIB))
    cluster.settle(3)
    assert serving(cluster) == ("c",)


def test_more_requests_in_flight_more_replicas_and_fewer_after_a_calm() -> None:
    cluster = cluster_of("abcd")
    cluster.serve("net", ModelTerms(1, 3, target=4))
    cluster.settle(3)
    (first,) = serving(cluster)
    cluster.nodes[first].in_flight["net"] = 9
    cluster.settle(3)
    assert len(serving(cluster)) == 3
    cluster.nodes[first].in_flight["net"] = 100
    cluster.settle(3)
    assert len(serving(cluster)) == 3, "no more than max"
    cluster.nodes[first].in_flight["net"] = 0
    cluster.settle(int(CALM_S) - 2)
    assert len(serving(cluster)) == 3
    cluster.settle(int(CALM_S) * 2 + 5)
    assert len(serving(cluster)) == 1


def test_a_lost_nodes_replica_goes_elsewhere() -> None:
    cluster = cluster_of("abc")
    cluster.serve("net", ModelTerms(2, 2))
    cluster.settle(3)
    lost, stays = serving(cluster)
    del cluster.nodes[lost]
    cluster.controller.lost(lost, cluster.now)
    assert serving(cluster) == (stays,)
    cluster.settle(3)
    assert len(serving(cluster)) == 2
    assert lost not in serving(cluster)


def test_a_node_that_is_told_to_unload_is_not_listed_before_it_has_loaded_the_model_again() -> None:
    """It gets the replica of a node that is lost between the order and the next report."""
    cluster = cluster_of("abc")
    cluster.serve("net", ModelTerms(2, 2))
    for node in cluster.nodes.values():
        node.models["net"] = ("1",)
    cluster.settle()
    first, second = serving(cluster)
    (other,) = set("abc") - {first, second}
    orders = cluster.controller.report(other, cluster.nodes[other].report(), cluster.now)
    while not orders.unload:
        cluster.settle_but(other)
        orders = cluster.controller.report(other, cluster.nodes[other].report(), cluster.now)
    del cluster.nodes[first]
    cluster.controller.lost(first, cluster.now)
    assert serving(cluster) == (second,)
    cluster.nodes[other].obey(orders)
    cluster.settle(3)
    assert serving(cluster) == tuple(sorted((second, other)))


def test_a_draining_nodes_replica_serves_until_another_is_ready() -> None:
    cluster = cluster_of("ab")
    cluster.serve("net", ModelTerms(1, 1))
    cluster.settle(3)
    (draining,) = serving(cluster)
    cluster.controller.drain(draining, cluster.now)
    for _ in range(8):
        cluster.settle()
        assert serving(cluster), "never without a replica"
    assert draining not in serving(cluster)
    assert cluster.controller.directory().nodes[draining].state == "drained"


def test_a_new_version_goes_replica_by_replica() -> None:
    cluster = cluster_of("abc")
    cluster.serve("net", ModelTerms(3, 3, version="1"))
    cluster.settle(3)
    cluster.serve("net", ModelTerms(3, 3, version="2"))
    seen = []
    for _ in range(12):
        cluster.settle()
        seen.append([node.models.get("net", ()) for node in cluster.nodes.values()])
        assert all(versions for versions in seen[-1]), "each node has a version ready at all times"
        assert sum(len(versions) == 2 for versions in seen[-1]) <= 1, "one replica at a time has two"
    assert seen[-1] == [("2",)] * 3


def test_a_version_that_does_not_load_stays_with_one_replica() -> None:
    cluster = cluster_of("ab")
    cluster.serve("net", ModelTerms(2, 2, version="1"))
    cluster.settle(3)
    cluster.serve("net", ModelTerms(2, 2, version="2"))
    for _ in range(5):
        cluster.now += 1
        for name, node in cluster.nodes.items():
            cluster.controller.report(name, node.report(), cluster.now)  # nobody loads anything
        cluster.controller.tick(cluster.now)
    assert sorted(cluster.controller.replicas.assigned()["net"].values()) == ["1", "2"]
    assert serving(cluster) == ("a", "b")


def test_a_replica_that_is_too_many_is_unloaded_once_gateways_send_it_nothing() -> None:
    cluster = cluster_of("abc")
    cluster.serve("net", ModelTerms(2, 2))
    for node in cluster.nodes.values():
        node.models["net"] = ("1",)  # a server that starts loads all
    listed = []
    while len(cluster.nodes["c"].models) + len(cluster.nodes["b"].models) + len(cluster.nodes["a"].models) == 3:
        cluster.settle()
        listed.append(serving(cluster))
    (other,) = (name for name, node in cluster.nodes.items() if not node.models)
    assert len(listed) > 2
    assert all(other not in names and len(names) == 2 for names in listed[1:]), "it is listed no more, and serves on"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"minimum": 2, "maximum": 1}, "expected 0 <= min <= max and max >= 1, got min 2 and max 1"),
        ({"minimum": 0, "maximum": 0}, "got min 0 and max 0"),
        ({"target": 0}, "target: expected at least 1 request, got 0"),
        ({"bytes": -1}, "bytes: expected at least 0, got -1"),
    ],
)
def test_terms_that_are_none(fields: dict, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        ModelTerms(**fields)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ModelTerms()),
        ("replicas = 3", ModelTerms(3, 3)),
        ('device = "gpu:1"\nreplicas = {min = 0, max = 4, target = 2}', ModelTerms(0, 4, 2, "gpu")),
        ('device = ["gpu:0", "gpu:1"]\nreplicas = {max = 2}', ModelTerms(1, 2, device="gpu")),
    ],
)
def test_model_toml_says_how_many(tmp_path: Path, text: str, terms: ModelTerms) -> None:
    (tmp_path / "model.toml").write_text(text)
    assert terms_of(read_config(tmp_path / "model.toml")) == terms


@pytest.mark.parametrize("text", ['replicas = "two"', "replicas = {min = 1}", "replicas = {max = 0}", "replicas = 1.5"])
def test_a_model_toml_with_replicas_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.toml").write_text(text)
    with pytest.raises(BadRequestError, match=r"model\.toml, line 1: replicas"):
        read_config(tmp_path / "model.toml")


@pytest.mark.parametrize("text", ["replicas = -1", "replicas = 0", "replicas = {min = 3, max = 2}"])
def test_numbers_of_replicas_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.toml").write_text(text)
    with pytest.raises(BadRequestError, match="expected 0 <= min <= max and max >= 1"):
        terms_of(read_config(tmp_path / "model.toml"))
