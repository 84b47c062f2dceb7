"""Replicas by `model.toml`: nodes report the terms of their models, and the controller goes by them."""

from __future__ import annotations

import os
from pathlib import Path

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import ModelTerms, NodeOrders
from opbox_service.cluster.node_models import AGAIN_S, ModelWork, StatedModels
from tests.cluster.small_cluster import GIB, SmallCluster


def write(folder: Path, text: str, *versions: str) -> None:
    for version in versions:
        (folder / version).mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    (folder / "model.toml").write_text(text)


def test_the_terms_of_a_folders_models(tmp_path: Path) -> None:
    write(tmp_path / "net", "replicas = 2", "1", "3", "notes")
    write(tmp_path / "one", 'replicas = {max = 4, target = 2}\ndevice = "gpu:1"')
    write(tmp_path / "some", "replicas = 1\nversions = [1]", "1", "2")
    write(tmp_path / "silent", "max_batch = 4")
    write(tmp_path / "broken", "replicas = -1")
    stated = StatedModels(tmp_path)
    assert stated.now() == {
        "net": ModelTerms(2, 2, version="3"),
        "one": ModelTerms(1, 4, 2, "gpu", version="1"),
        "some": ModelTerms(1, 1),
    }
    assert StatedModels(tmp_path, "gpu:0").now()["net"].device == "gpu"
    (tmp_path / "net" / "4").mkdir()
    assert stated.now()["net"].version == "4"
    for text, terms in (
        ("replicas = 0", ModelTerms(2, 2, version="4")),
        ("replicas = 3", ModelTerms(3, 3, version="4")),
    ):
        write(tmp_path / "net", text)
        os.utime(tmp_path / "net" / "model.toml", ns=(0, terms.minimum))
        assert stated.now()["net"] == terms, "a mistake changes nothing"
    write(tmp_path / "net", "")
    assert "net" not in stated.now()


def test_orders_are_carried_out_once() -> None:
    work = ModelWork()
    orders = NodeOrders(load=(("net", "1"),), unload=(("old", ""), ("other", "1")))
    assert work.begin(orders, 0.0) == (["net"], ["old"])
    assert work.begin(orders, 1.0) == ([], [])
    work.ended(["net", "old"])
    assert work.begin(orders, 2.0) == ([], ["old"]), "it has been loaded, and is not ready"
    assert work.begin(NodeOrders(load=(("net", "2"),)), 3.0) == (["net"], [])
    work.ended(["net"])
    assert work.begin(NodeOrders(load=(("net", "2"),)), 3.0 + AGAIN_S) == (["net"], [])


def cluster_of(nodes: str, **terms: ModelTerms) -> SmallCluster:
    cluster = SmallCluster()
    for name in nodes:
        node = cluster.join(name, cpu=GIB)
        node.terms = dict(terms)
        node.models = {model: (row.version or "1",) for model, row in terms.items()}  # a server that starts loads all
    return cluster


def serving(cluster: SmallCluster) -> tuple[str, ...]:
    return cluster.controller.directory().models.get("net", ())


def test_as_many_nodes_serve_a_model_as_its_file_says() -> None:
    cluster = cluster_of("abc", net=ModelTerms(2, 2, version="1"))
    cluster.settle(3)
    assert len(serving(cluster)) == 2
    for node in cluster.nodes.values():
        node.terms = {"net": ModelTerms(3, 3, version="1")}
    cluster.settle(3)
    assert serving(cluster) == ("a", "b", "c")


def test_replicas_go_to_nodes_that_have_the_model() -> None:
    cluster = cluster_of("ab", net=ModelTerms(3, 3, version="1"))
    cluster.join("large", cpu=4 * GIB)
    cluster.settle(3)
    assert serving(cluster) == ("a", "b")


def test_the_newest_version_that_a_node_has_is_the_clusters() -> None:
    cluster = cluster_of("ab", net=ModelTerms(2, 2, version="1"))
    cluster.settle(2)
    cluster.nodes["a"].terms = {"net": ModelTerms(2, 2, version="2")}
    cluster.settle()
    late = cluster.join("c", cpu=GIB)
    late.terms = {"net": ModelTerms(2, 2, version="1")}
    cluster.settle(5)
    assert cluster.controller.replicas.terms()["net"].version == "2"
    assert [node.models["net"] for name, node in cluster.nodes.items() if name in serving(cluster)] == [("2",)] * 2


def test_a_file_that_says_nothing_of_replicas_any_more_leaves_the_model_where_it_is() -> None:
    cluster = cluster_of("ab", net=ModelTerms(1, 1, version="1"))
    cluster.settle(6)
    (serves,) = serving(cluster)
    for node in cluster.nodes.values():
        node.terms = {}
    cluster.settle(3)
    assert serving(cluster) == (serves,)
    assert cluster.nodes[serves].models == {"net": ("1",)}


def test_a_drain_ends_where_no_other_node_has_room_for_a_replica() -> None:
    cluster = cluster_of("abc", net=ModelTerms(3, 3, version="1"))
    cluster.settle(3)
    cluster.controller.drain("a", cluster.now)
    cluster.settle(4)
    assert serving(cluster) == ("b", "c")
    assert cluster.controller.directory().nodes["a"].state == "drained"


def test_a_drain_ends_where_no_other_node_has_the_models_files() -> None:
    """The model is served there until the node has gone."""
    cluster = cluster_of("a", net=ModelTerms(1, 1, version="1"))
    cluster.join("b", cpu=GIB)
    session = cluster.start(cluster.place(avoid=("b",)))
    cluster.settle(3)
    cluster.controller.drain("a", cluster.now)
    cluster.settle(3)
    assert cluster.controller.directory().nodes["a"].state == "draining", "a session is left"
    assert cluster.nodes["a"].draining, "one that stores checkpoints may be moved"
    cluster.end(session)
    cluster.settle(2)
    assert cluster.controller.directory().nodes["a"].state == "drained"
    assert serving(cluster) == ("a",)
    late = cluster.join("c", cpu=GIB)
    late.terms = {"net": ModelTerms(1, 1, version="1")}
    cluster.settle(6)
    assert serving(cluster) == ("c",)
    assert cluster.nodes["a"].models == {}


def test_models_without_replicas_are_listed_where_they_are_ready() -> None:
    cluster = SmallCluster()
    for name in "ab":
        cluster.join(name, cpu=GIB).models = {"plain": ("1",), "loading": ()}
    cluster.settle()
    cluster.nodes["b"].models["ann.lenet"] = ("3",)
    cluster.settle()
    assert cluster.controller.directory().models == {"plain": ("a", "b"), "ann.lenet": ("b",)}
    version = cluster.controller.directory().version
    cluster.nodes["b"].in_flight["plain"] = 7
    cluster.settle()
    assert cluster.controller.directory().version == version
    cluster.controller = Controller.load(cluster.controller.dump())
    assert cluster.controller.directory().models == {"plain": ("a", "b"), "ann.lenet": ("b",)}
    del cluster.nodes["b"].models["plain"]
    cluster.settle()
    assert cluster.controller.directory().models == {"plain": ("a",), "ann.lenet": ("b",)}
    cluster.controller.lost("b", cluster.now)
    assert cluster.controller.directory().models == {"plain": ("a",)}


def test_a_restored_controller_knows_the_terms() -> None:
    cluster = cluster_of("ab", net=ModelTerms(1, 1, version="1"))
    cluster.settle(3)
    cluster.controller = Controller.load(cluster.controller.dump())
    before = serving(cluster)
    cluster.settle(3)
    assert serving(cluster) == before
    assert len(before) == 1
