"""Properties of classes that old programs read and set, and parts of arrays that are assigned by methods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import opbox as mx


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """This thread's scopes as they were."""
    before = mx.Context.default_ctx, mx.name.NameManager.current, mx.AttrScope.current
    yield
    mx.Context.default_ctx, mx.name.NameManager.current, mx.AttrScope.current = before


def test_the_default_context_is_set() -> None:
    mx.Context.default_ctx = mx.cpu(3)
    assert mx.current_context() == mx.cpu(3)
    with mx.cpu(1):
        assert mx.Context.default_ctx == mx.cpu(1)
    assert mx.Context.default_ctx == mx.cpu(3)
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(mx.Context.default_ctx))
    thread.start()
    thread.join()
    assert others == [mx.cpu(0)], "another thread keeps its own"


def test_names_and_attributes_come_of_the_current_scope() -> None:
    mx.name.NameManager.current = mx.name.Prefix("net_")
    assert mx.name.NameManager.current.get(None, "fc") == "net_fc0"
    assert mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2).name == "net_fullyconnected0"
    mx.AttrScope.current = mx.AttrScope(a="1")
    assert mx.sym.Variable("y").list_attr() == {"a": "1"}
    assert mx.AttrScope.current.get({"b": "2"}) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("kind", "name"), [(mx.Context, "default_ctx"), (mx.name.NameManager, "current"), (mx.AttrScope, "current")]
)
def test_something_else_is_refused(kind: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.{name}: expected an? {kind.__name__}, got 'gpu'"):
        setattr(kind, name, "gpu")


def test_other_attributes_of_these_classes_are_set_as_ever() -> None:
    class Own(mx.name.NameManager):
        hint = "a"

    Own.hint = "b"
    assert Own.hint == "b"


def test_parts_of_arrays_are_assigned_by_methods(embedded: None) -> None:
    x = mx.nd.ones((2, 3))
    assert x.writable
    assert x.slice_assign(mx.nd.zeros((1, 2)), (0, 0), (1, 2), (None, None)) is x
    assert x.asnumpy().tolist() == [[0, 0, 1], [1, 1, 1]]
    assert x.slice_assign_scalar(5, (0, None), (2, None), (1, 2)) is x
    assert x.asnumpy().tolist() == [[5, 0, 5], [5, 1, 5]]
    with pytest.raises(mx.MXNetError, match=r"expected \(1, 2\), got \(2, 2\)"):
        x.slice_assign(mx.nd.zeros((2, 2)), (0, 0), (1, 2), (None, None)).asnumpy()


def test_a_store_of_ones_own_says_what_it_lacks() -> None:
    store = mx.kv.KVStoreBase()
    for call in (store.set_optimizer, store.save_optimizer_states, store.load_optimizer_states):
        with pytest.raises(NotImplementedError, match="KVStoreBase must define"):
            call(None)  # type: ignore[arg-type]


def test_an_optimizers_abs_is_that_of_arrays() -> None:
    assert mx.optimizer.NDabs is mx.nd.abs
