"""Symbols of very many nodes: no operation recurses, and none sets off the collector, which would look at every node.

The time of each is then that of its nodes: a collection of a long chain takes longer than making a tenth of it.
"""

from __future__ import annotations

import copy
import gc
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import opbox as mx

NODES = 10_000
CHAIN = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        *({"op": "relu", "name": f"r{i}", "inputs": [[i, 0, 0]]} for i in range(NODES)),
    ],
    "arg_nodes": [0],
    "node_row_ptr": list(range(NODES + 2)),
    "heads": [[NODES, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}


@contextmanager
def collections() -> Iterator[list[int]]:
    """The generations that the collector has looked at in the block."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield generations
    finally:
        gc.callbacks.remove(note)


@pytest.fixture(scope="module")
def chain() -> mx.Symbol:
    return mx.sym.load_json(json.dumps(CHAIN))


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "load": lambda net: mx.sym.load_json(json.dumps(CHAIN)),
    "tojson": lambda net: net.tojson(),
    "copy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "compose": lambda net: net(data=mx.sym.Variable("other")),
    "infer_shape": lambda net: net.infer_shape(data=(2, 3)),
    "infer_type": lambda net: net.infer_type(data="float32"),
    "bind": lambda net: net.simple_bind(mx.cpu(), data=(2, 3)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_sets_off_no_collection_of_all(name: str, chain: mx.Symbol) -> None:
    gc.collect()
    with collections() as generations:
        result = OPERATIONS[name](chain)
    assert generations.count(2) <= 1, generations
    assert len(generations) <= 3, generations
    del result


def test_what_a_chain_says_of_itself(chain: mx.Symbol) -> None:
    assert chain.list_arguments() == ["data"]
    assert chain.list_auxiliary_states() == []
    internals = chain.get_internals()
    assert len(internals.list_outputs()) == NODES + 1
    assert internals["r5_output"].name == "r5"
    assert chain.attr_dict() == {}
    assert chain.debug_str().count("Op:relu") == NODES
    assert json.loads(chain.tojson())["heads"] == [[NODES, 0, 0]]
    assert chain(data=mx.sym.Variable("other")).list_arguments() == ["other"]
