"""Graphs by content: what one spelling leads to, what is looked up without being written again, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops import registry
from opbox_protocol.errors import GraphError, LimitError, NotFoundError
from opbox_service.stateless import graph_cache
from opbox_service.stateless.graph_cache import GraphCache, RecurringGraph


def document(name: str = "y", **more: Any) -> dict[str, Any]:
    nodes = [{"op": "null", "name": "x", "inputs": []}, {"op": "relu", "name": name, "inputs": [[0, 0, 0]]}]
    return {"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]], **more}


@pytest.fixture
def cache() -> GraphCache:
    registry.load()
    return GraphCache(2, max_nodes=10)


def test_a_spelling_that_came_before_is_not_hashed_again(cache: GraphCache, monkeypatch: pytest.MonkeyPatch) -> None:
    name, graph = cache.put(document(), "ann")
    monkeypatch.setattr(graph_cache, "content_hash", lambda _: pytest.fail("hashed again"))
    assert cache.put(document(), "ann") == (name, graph)


def test_the_order_of_keys_changes_no_name(cache: GraphCache) -> None:
    name, graph = cache.put(document(), "ann")
    reordered = dict(reversed(document().items()))
    assert list(reordered) != list(document())
    assert cache.put(reordered, "ann") == (name, graph)


def test_another_graph_has_another_name(cache: GraphCache) -> None:
    assert cache.put(document("y"), "ann")[0] != cache.put(document("z"), "ann")[0]


def test_a_graph_that_was_dropped_is_loaded_again(cache: GraphCache) -> None:
    name, graph = cache.put(document("a"), "ann")
    cache.put(document("b"), "ann")
    cache.put(document("c"), "ann")
    again, loaded = cache.put(document("a"), "ann")
    assert again == name
    assert loaded is not graph


def chain(name: str, nodes: int) -> dict[str, Any]:
    first = {"op": "null", "name": "x", "inputs": []}
    rows = [{"op": "relu", "name": f"{name}{i}", "inputs": [[i, 0, 0]]} for i in range(nodes - 1)]
    return {"nodes": [first, *rows], "arg_nodes": [0], "heads": [[nodes - 1, 0, 0]]}


def test_who_has_most_loses_first() -> None:
    registry.load()
    cache = GraphCache(3, max_nodes=10)
    own, _ = cache.put(document("own"), "bob")
    many = [cache.put(document(f"y{i}"), "ann")[0] for i in range(5)]
    assert cache.resolve(f"sha256:{own}", "bob")[0] == own
    with pytest.raises(NotFoundError):
        cache.resolve(f"sha256:{many[2]}", "ann")
    assert [cache.resolve(f"sha256:{name}", "ann")[0] for name in many[3:]] == many[3:]


def test_large_graphs_are_fewer() -> None:
    registry.load()
    cache = GraphCache(100, max_nodes=10)
    own, _ = cache.put(document("own"), "bob")
    large = [cache.put(chain(f"{i}", 10), "ann")[0] for i in range(6)]
    assert len(cache) == 1 + (graph_cache.LARGEST_GRAPHS * 10 - 2) // 10
    assert cache.resolve(f"sha256:{own}", "bob")[0] == own
    assert cache.resolve(f"sha256:{large[-1]}", "ann")[0] == large[-1]


def test_large_graphs_go_when_nobody_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    now = [0.0]
    monkeypatch.setattr(graph_cache.time, "monotonic", lambda: now[0])
    cache = GraphCache(100, max_nodes=10, kept_nodes=15)
    old, used, small = (cache.put(chain(name, count), "ann")[0] for name, count in (("a", 10), ("b", 10), ("c", 5)))
    now[0] = graph_cache.KEEP_S - 1
    assert cache.sweep() == 0, "nobody has had time to use them again"
    cache.resolve(f"sha256:{used}", "ann")
    now[0] += 2
    assert cache.sweep() == 10 * graph_cache.NODE_BYTES
    with pytest.raises(NotFoundError, match="send it with PUT"):
        cache.resolve(f"sha256:{old}", "ann")
    assert [cache.resolve(f"sha256:{name}", "ann")[0] for name in (used, small)] == [used, small]
    now[0] += 2 * graph_cache.KEEP_S
    assert cache.sweep() == 0, "so few stay for as long as there is a server"
    assert len(cache) == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"nodes": [{"op": "null", "name": "x", "inputs": []}] * 11, "heads": []}, LimitError),
        (document(attrs={"note": "\ud800"}, heads=[[7, 0, 0]]), GraphError),
        (document(attrs={"note": 1 << 80}, heads=[[7, 0, 0]]), GraphError),
        ({"nodes": None, "heads": []}, GraphError),
    ],
    ids=["too many nodes", "a lone surrogate", "an endless integer", "no nodes"],
)
def test_what_is_refused_is_refused_again(cache: GraphCache, wrong: dict[str, Any], error: type[Exception]) -> None:
    for _ in range(2):
        with pytest.raises(error):
            cache.put(wrong, "ann")
    assert len(cache) == 0


def test_graphs_of_other_owners_are_unknown(cache: GraphCache) -> None:
    key, graph = cache.put(document(), "ann")
    with pytest.raises(NotFoundError) as of_another:
        cache.resolve(f"sha256:{key}", "bob")
    with pytest.raises(NotFoundError) as of_nobody:
        cache.resolve(f"sha256:{'0' * 64}", "bob")
    assert str(of_another.value).replace(key, "0" * 64) == str(of_nobody.value)
    assert cache.put(document(), "bob")[1] is not graph, "loading it takes as long as if nobody had sent it"
    assert cache.resolve(f"sha256:{key}", "ann")[1] is graph


def test_a_document_that_another_owner_has_sent_is_loaded_again(cache: GraphCache) -> None:
    recurring = RecurringGraph(document())
    key, graph = cache.resolve(recurring, "ann")
    assert cache.resolve(recurring, "ann") == (key, graph)
    assert cache.resolve(recurring, "bob")[1] is not graph


def test_an_owner_of_many_graphs_leaves_the_others_theirs() -> None:
    registry.load()
    cache = GraphCache(4, max_nodes=10)
    own = [cache.put(document(f"own{i}"), owner)[0] for i, owner in enumerate(("bob", "eve"))]
    for i in range(20):
        cache.put(document(f"y{i}"), "ann")
    assert len(cache) == 4
    for key, owner in zip(own, ("bob", "eve"), strict=True):
        assert cache.resolve(f"sha256:{key}", owner)[0] == key


def test_owners_without_graphs_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    now = [0.0]
    monkeypatch.setattr(graph_cache.time, "monotonic", lambda: now[0])
    cache = GraphCache(100, max_nodes=10, kept_nodes=0)
    for number in range(20):
        cache.put(document(), f"owner {number}")
    now[0] = graph_cache.KEEP_S + 1
    assert cache.sweep() == 20 * 2 * graph_cache.NODE_BYTES
    assert (len(cache), cache._owners) == (0, {})
