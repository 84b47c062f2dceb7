"""Graphs and what is compiled from them go as soon as nobody refers to them: a search would keep everybody waiting."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.collector import collection_paused
from opbox_service.executor.bind import bind
from opbox_service.graph.json import load
from tests.contract.live import symbol, var

TWICE = symbol(var("x"), *(("tanh", f"y{i}", {}, [0]) for i in range(2)), ("elemwise_add", "z", {}, [1, 2]))
CHAIN = symbol(var("x"), *(("tanh", f"y{i}", {}, [i]) for i in range(20)))


@pytest.mark.parametrize("document", [TWICE, CHAIN], ids=["equal calls", "chain"])
@pytest.mark.parametrize("trains", [False, True])
def test_no_graph_or_executor_refers_to_itself(document: object, trains: bool) -> None:
    backend, array = backend_for("cpu"), np.ones(2, np.float32)
    with collection_paused():
        graph = load(document)
        grads = {"x": np.zeros_like(array)} if trains else {}
        executor = bind(graph, args={"x": array}, grads=grads, backend=backend, random=backend.random(0))
        executor.forward(is_train=trains)
        if trains:
            executor.backward([array])
        there = [weakref.ref(thing) for thing in (graph, executor.plan.graph, executor)]
        del graph, executor
        assert [reference() for reference in there] == [None] * 3
