"""Requests that would cost a server far more than they cost their sender; `benchmarks/fairness.py` runs them too.

Each is a function of a `Live` server and a size; it sends its request as "ann" and gives the answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping

import numpy as np

from opbox_protocol import wire
from tests.contract.live import TOKENS, Got, Live, Session, got, symbol, var

__all__ = ["ATTACKS", "Attack", "begin", "chain", "readers", "sessions", "temporaries", "waiting"]

Attack = Callable[[Live], Got]
MIB = 1 << 20


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


def begin(server: Live, head: str, body: bytes = b"", owner: str = "ann") -> socket.socket:
    """A request on a socket of its own, whose answer nobody has begun to read."""
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.sendall(f"{head}Host: {host}:{port}\r\nAuthorization: Bearer {TOKENS[owner]}\r\n\r\n".encode() + body)
    return sock


def zeros(session: Session, id: int, mib: int) -> Got:
    return session.run({"do": "invoke", "op": "_zeros", "attrs": {"shape": [mib * MIB // 4]}, "outputs": [id]})


def readers(server: Live, count: int, mib: int, seconds: float) -> Got:
    """`count` clients ask for an array and do not read it; the answer of one who reads a little one meanwhile."""
    session = server.session()
    try:
        assert zeros(session, 1, mib).status == 200
        body = b'{"commands":[{"do":"fetch","id":1,"as":"x"}]}'
        head = f"POST {session.path}/commands HTTP/1.1\r\nAccept: application/octet-stream\r\n"
        with contextlib.ExitStack() as open_sockets:
            for _ in range(count):
                open_sockets.enter_context(begin(server, f"{head}Content-Length: {len(body)}\r\n", body))
            time.sleep(seconds)
            return server.json("GET", "/v1/sessions")
    finally:
        session.delete()


def put_later(session: Session, id: int, x: np.ndarray) -> Got:
    """A batch that nobody waits for, by a socket: httpx copies the rest of a large body after each write of a part."""
    session.seq += 1
    header = {"seq": session.seq, "wait": False, "commands": [{"do": "put", "id": id, "tensor": "x"}]}
    head, buffers = wire.encode(header, {"x": x}, "inputs")
    body = b"".join([head, *buffers])
    lengths = f"{wire.HEADER_LENGTH}: {len(head)}\r\nContent-Length: {len(body)}\r\n"
    with begin(session.server, f"POST {session.path}/commands HTTP/1.1\r\n{lengths}", body) as sock:
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        size = answer.headers.get(wire.HEADER_LENGTH)
        return Got(answer.status, json.loads(answer.read(int(size) if size else None)), {}, dict(answer.headers))


def waiting(server: Live, count: int, mib: int) -> Got:
    """Batches behind one that never comes; the last answer."""
    session = server.session()
    session.seq = 1
    try:
        x = np.zeros(mib * MIB // 4, np.float32)
        for id in range(count):
            answer = put_later(session, id, x)
            if answer.status != 202:
                break
        return answer
    finally:
        session.delete()


def temporaries(server: Live, mib: int, times: int) -> Got:
    """An array `times` times in a row, which nobody keeps; the answer where it is too large for the session."""
    session = server.session()
    try:
        assert zeros(session, 1, mib).status == 200
        attrs = {"num_args": times, "dim": 0}
        return session.run({"do": "invoke", "op": "Concat", "attrs": attrs, "inputs": [1] * times, "outputs": [None]})
    finally:
        session.delete()


def sessions(server: Live, count: int, mib: int) -> Got:
    """Sessions that fill their quotas; the last one's answer."""
    opened = [server.session() for _ in range(count)]
    try:
        return [zeros(session, 1, mib) for session in opened][-1]
    finally:
        for session in opened:
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
    "10 million edges": lambda s: edges(s, 200, 50_000),
    "19,000 unknown variables": lambda s: underdetermined(s, 19_000),
    "an answer of 8 GiB as JSON": lambda s: fetches(s, 1 << 28, 8, binary=False),
    "one array 200 times": lambda s: fetches(s, 12_000_000, 200, binary=True),
    "one array 200 times as JSON": lambda s: fetches(s, 1_000_000, 200, binary=False),
    "512 MB as JSON": lambda s: fetches(s, 128 << 20, 1, binary=False),
    "20 readers of 256 MB that do not read": lambda s: readers(s, 20, 256, 5),
    "40 waiting batches of 70 MB": lambda s: waiting(s, 40, 70),
    "8 GB of temporaries": lambda s: temporaries(s, 1024, 8),
    "three sessions of 7 GB": lambda s: sessions(s, 3, 7 * 1024),
}
"""By what they are; sizes are those that broke a server with its default settings."""
