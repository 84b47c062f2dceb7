"""Requests that would cost a server far more than they cost their sender; `benchmarks/fairness.py` runs them too.

Each is a function of a `Live` server and a size; it sends its request as "ann" and gives the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np

from tests.contract.live import Got, Live, got, symbol, var

__all__ = ["ATTACKS", "Attack"]

Attack = Callable[[Live], Got]


def post(server: Live, path: str, body: bytes) -> Got:
    return got(server.clients["ann"].post(path, content=body))


def invoke(server: Live, op: str, inputs: int = 2, **attrs: object) -> Got:
    session = server.session()
    try:
        arrays = {f"x{i}": np.ones((4, 4), np.float32) for i in range(inputs)}
        puts = [{"do": "put", "id": i + 1, "tensor": name} for i, name in enumerate(arrays)]
        call = {"do": "invoke", "op": op, "attrs": attrs, "inputs": [i + 1 for i in range(inputs)], "outputs": [99]}
        return session.run(*puts, call, **arrays)
    finally:
        session.delete()


def in_graph(server: Live, op: str, **attrs: str) -> Got:
    graph = symbol(var("x"), (op, "y", attrs, [0]))
    return server.json("POST", "/v1/infer_shape", {"graph": graph, "shapes": {"x": [4, 4]}})


def chain(server: Live, nodes: int) -> Got:
    rows = [var("x"), *(("_copy", f"n{i}", {}, [i]) for i in range(nodes - 1))]
    return server.json("POST", "/v1/infer_shape", {"graph": symbol(*rows), "shapes": {"x": [2]}})


def edges(server: Live, nodes: int, inputs: int) -> Got:
    text = '{"op":"add_n","name":"n%d","attrs":{"num_args":"%d"},"inputs":[%s]}'
    rows = [
        '{"op":"null","name":"x","inputs":[]}',
        *(text % (i, inputs, "0," * (inputs - 1) + "0") for i in range(nodes)),
    ]
    return post(server, "/v1/infer_shape", b'{"graph":{"nodes":[%b],"heads":[1]}}' % ",".join(rows).encode())


def underdetermined(server: Live, variables: int) -> Got:
    rows = [var(f"x{i}") for i in range(variables)]
    rows += [("broadcast_add", f"y{i}", {}, [2 * i, 2 * i + 1]) for i in range(variables // 2)]
    graph = symbol(*rows, heads=list(range(variables, len(rows))))
    return server.json("POST", "/v1/infer_shape", {"graph": graph, "shapes": {}})


def fetches(server: Live, elements: int, times: int, *, binary: bool) -> Got:
    session = server.session()
    try:
        zeros = {"do": "invoke", "op": "_zeros", "attrs": {"shape": [elements]}, "outputs": [1]}
        assert session.run(zeros).status == 200
        reads = [{"do": "fetch", "id": 1, "as": f"o{i}"} for i in range(times)]
        if binary:
            return session.run(*reads)
        return server.json("POST", f"{session.path}/commands", {"commands": reads})
    finally:
        session.delete()


def numbers(server: Live, count: int) -> Got:
    graph = symbol(var("x"), ("_copy", "y", {}, [0]))
    data = b",".join([b"0.1234567"] * count)
    head = json.dumps({"graph": graph, "inputs": [{"name": "x", "shape": [count], "datatype": "FP32"}]})
    return post(server, "/v1/forward", head.removesuffix("}]}").encode() + b',"data":[' + data + b"]}]}")


ATTACKS: Mapping[str, Attack] = {
    "Concat of 300 million arrays": lambda s: invoke(s, "Concat", num_args=300_000_000),
    "Concat of 300 million in a graph": lambda s: in_graph(s, "Concat", num_args="300000000"),
    "SliceChannel into 300 million": lambda s: invoke(s, "SliceChannel", 1, num_outputs=300_000_000),
    "split_v2 into 300 million": lambda s: in_graph(s, "_split_v2", sections="300000000"),
    "50 MB of empty lists": lambda s: post(s, "/v1/forward", b'{"graph":[' + b"[]," * 17_000_000 + b"[]]}"),
    "50 MB of numbers": lambda s: numbers(s, 5_000_000),
    "100 MB of numbers": lambda s: numbers(s, 10_000_000),
    "16 MB of objects": lambda s: post(s, "/v1/infer_shape", b'{"graph":[' + b'{"a":1},' * 2_000_000 + b"{}]}"),
    "a million wrong fields": lambda s: s.json(
        "POST", "/v1/infer_shape", {"graph": {}, "shapes": {f"x{i}": "y" for i in range(900_000)}}
    ),
    "a chain of 99,999 nodes": lambda s: chain(s, 99_999),
    "600,000 edges": lambda s: edges(s, 12, 50_000),
    "5 million edges": lambda s: edges(s, 100, 50_000),
    "19,000 unknown variables": lambda s: underdetermined(s, 19_000),
    "an answer of 8 GiB as JSON": lambda s: fetches(s, 1 << 28, 8, binary=False),
    "one array 200 times": lambda s: fetches(s, 12_000_000, 200, binary=True),
    "one array 200 times as JSON": lambda s: fetches(s, 1_000_000, 200, binary=False),
    "512 MB as JSON": lambda s: fetches(s, 128 << 20, 1, binary=False),
}
"""By what they are; sizes are those that broke a server with its default settings."""
