"""Graphs with subgraphs over HTTP: run, refused, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opbox as mx
from tests.contract.live import Live
from tests.control_flow.values import arrays_for, run, symbol


@pytest.mark.parametrize("name", ["dense", "nested", "while", "cond in foreach"])
def test_forward_and_backward(server: Live, name: str) -> None:
    net, (arguments, heads) = symbol(name), arrays_for(name)
    expected = run(net, arguments, heads)
    names = net.list_outputs()
    tensors = {**arguments, **{f"head_grad:{output}": head for output, head in zip(names, heads, strict=True)}}
    graph = json.loads(net.tojson())
    shapes = server.json(
        "POST", "/v1/infer_shape", {"graph": graph, "shapes": {k: list(v.shape) for k, v in arguments.items()}}
    )
    assert shapes.header["out_shapes"] == [list(head.shape) for head in heads]
    for _ in range(2):  # the second time on the plan of the first
        answer = server.call("POST", "/v1/backward", {"graph": graph}, tensors)
        assert answer.status == 200
        for k, output in enumerate(names):
            np.testing.assert_allclose(answer.tensors[output], expected[f"out:{k}"], rtol=1e-5, atol=1e-6)
        for key in arguments:
            np.testing.assert_allclose(answer.tensors[f"grad:{key}"], expected[f"grad:{key}"], rtol=1e-5, atol=1e-6)


def _changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(symbol("cumulative").tojson())
    change(next(node for node in document["nodes"] if "subgraphs" in node))
    return document


@pytest.mark.parametrize(
    ("graph", "status", "message"),
    [
        (_changed(lambda node: node.pop("subgraphs")), 400, "expected 1 subgraphs"),
        (
            _changed(lambda node: node.update(subgraphs=[{"nodes": [], "heads": []}])),
            400,
            "heads: expected at least one",
        ),
        (_changed(lambda node: node["attrs"].update(in_data_locs="[5]")), 400, "each of the body's variables once"),
        (_changed(lambda node: node["attrs"].update(num_out_data="x")), 400, "num_out_data"),
    ],
)
def test_wrong_graphs(server: Live, graph: dict[str, Any], status: int, message: str) -> None:
    answer = server.json("POST", "/v1/infer_shape", {"graph": graph, "shapes": {}})
    assert answer.status == status
    assert message in answer.header["error"]


def test_an_endless_loop_ends_at_the_deadline(start: Callable[..., Live]) -> None:
    _, (last,) = mx.sym.contrib.while_loop(
        lambda i: i >= 0, lambda i: ([], [i + 1]), [mx.sym.var("i")], max_iterations=2**31 - 1
    )
    server = start("process", OPBOX_DEADLINE_S="1")
    graph = json.loads(last.tojson())
    began = time.monotonic()
    answer = server.call("POST", "/v1/forward", {"graph": graph}, {"i": np.zeros(1, np.float32)})
    assert answer.status == 504
    assert time.monotonic() - began < 20
    again = server.call(
        "POST", "/v1/forward", {"graph": json.loads(symbol("cumulative").tojson())}, arrays_for("cumulative")[0]
    )
    assert again.status == 200
