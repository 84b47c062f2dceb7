"""The routes that tell what a session's executors are and which networks they run."""

from __future__ import annotations

import re

import numpy as np

from tests.contract.live import FC, Live, Session


def bound(server: Live) -> Session:
    """A session with an executor that ran twice forward and once backward."""
    session = server.session()
    answer = session.run(
        {"do": "put", "id": 1, "tensor": "x"},
        {"do": "put", "id": 2, "tensor": "w"},
        {"do": "put", "id": 3, "tensor": "b"},
        {"do": "zeros", "ids": [4], "shape": [4, 3], "dtype": "float32"},
        {"do": "bind", "id": 5, "graph": FC, "args": {"x": 1, "w": 2, "b": 3}, "grads": {"w": 4}, "outputs": [6]},
        {"do": "forward", "executor": 5},
        {"do": "forward", "executor": 5, "is_train": True},
        {"do": "backward", "executor": 5, "head_grads": [6]},
        x=np.ones((2, 3), np.float32),
        w=np.ones((4, 3), np.float32),
        b=np.ones(4, np.float32),
    )
    assert answer.status == 200, answer.header
    return session


def test_executors_are_listed_with_their_runs(server: Live) -> None:
    session = bound(server)
    (executor,) = server.call("GET", f"{session.path}/executors").header["executors"]
    assert (executor["id"], executor["nodes"], executor["outputs"]) == (5, 4, ["fc_output"])
    assert (executor["forwards"], executor["backwards"]) == (2, 1)
    assert executor["output_bytes"] == 2 * 4 * 4
    session.delete()


def test_a_network_has_the_shapes_of_all_that_its_nodes_put_out(server: Live) -> None:
    session = bound(server)
    network = server.call("GET", f"{session.path}/executors/5").header
    nodes = {node["name"]: node for node in network["network"]}
    assert [node["name"] for node in network["network"]] == ["x", "w", "b", "fc"]
    assert nodes["x"]["kind"] == "argument"
    assert nodes["fc"]["op"] == "FullyConnected"
    assert nodes["fc"]["attrs"] == {"num_hidden": "4"}
    assert nodes["fc"]["source"] == "train.py:12"
    assert nodes["fc"]["inputs"] == [[0, 0], [1, 0], [2, 0]]
    assert nodes["fc"]["outputs"] == [{"name": "fc_output", "shape": [2, 4], "datatype": "float32"}]
    assert network["heads"] == [[3, 0]]
    session.delete()


def test_a_network_is_drawn_as_svg(server: Live) -> None:
    session = bound(server)
    drawings = f"{session.path}/executors/5/drawings"
    plain = server.clients["ann"].get(f"{drawings}/folded", headers={"accept": "image/svg+xml"})
    assert (plain.status_code, plain.headers["content-type"]) == (200, "image/svg+xml")
    assert set(re.findall(r'data-nodes="([\d ]+)"', plain.text)) == {"0", "1", "2", "3"}
    other = server.call("GET", f"{session.path}/executors/5/drawings/round")
    assert other.status == 404
    assert "expected one of folded, folded-with-parameters" in other.error
    assert server.call("GET", f"{session.path}/executors/5/drawings/folded", owner="bob").status == 404
    session.delete()


def test_what_is_no_executor_of_the_caller_s_is_not_there(server: Live) -> None:
    session = bound(server)
    for number in ("1", "99", "-5", "five", "5" * 30):
        answer = server.call("GET", f"{session.path}/executors/{number}")
        assert answer.status == 404, answer.header
    assert "got an array" in server.call("GET", f"{session.path}/executors/1").error
    assert server.call("GET", f"{session.path}/executors", owner="bob").status == 404
    assert server.call("GET", f"{session.path}/executors/5", owner="bob").status == 404
    session.delete()
    assert server.call("GET", f"{session.path}/executors/5").status == 410
