"""Forged files of checkpoints: what a session's own code can have saved, from one that is right.

    for label, data in forgeries(right):
        ...

It knows the format of the file alone, and nothing of the server.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["DRAWS", "FURTHER", "forged", "forgeries", "mutations", "parts_of"]

START = 64
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        3,
        1 << 31,
        (1 << 32) - 1,
        1 << 62,
        (1 << 63) - 1,
        1 << 63,
        (1 << 64) - 1,
        1 << 70,
        0.5,
        1e300,
    ),
    *("", "x", "sha256:" + "0" * 64, "FP64", "\ud800", [], {}, [[]], [0], [-1], [1 << 62, 0], {"a": 1}, [1] * 64),
)
"""In the place of each value of the header."""
DRAWS: dict[str, Any] = {
    "nodes": [{"op": "_random_uniform", "name": "draw", "attrs": {"shape": "(3,)"}, "inputs": []}],
    "arg_nodes": [],
    "node_row_ptr": [0, 1],
    "heads": [[0, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}
"""A graph that draws random numbers."""
FURTHER: tuple[dict[str, Any], ...] = (
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "backward", "executor": 10, "head_grads": [1]},
    {"do": "forward", "executor": 10, "is_train": False},
    {"do": "describe", "id": 1},
    {"do": "describe", "id": 3},
    {"do": "describe_executor", "id": 10},
    {"do": "fetch", "id": 1, "as": "a"},
    {"do": "fetch", "id": 3, "as": "b"},
    {"do": "fetch", "id": 4, "as": "c"},
    {"do": "invoke", "op": "relu", "inputs": [1], "outputs": [101]},
    {"do": "invoke", "op": "sum", "inputs": [3], "outputs": [102]},
    {"do": "invoke", "op": "transpose", "inputs": [2], "outputs": [103]},
    {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": [3]}, "inputs": [], "outputs": [104]},
    {"do": "update", "op": "sgd_update", "attrs": {"lr": 0.1}, "calls": [{"inputs": [2, 3]}]},
    {"do": "copy", "from": 1, "to": 105},
    {"do": "view", "id": 106, "of": 1, "shape": [-1]},
    {"do": "view", "id": 107, "of": 2, "at": 0},
    {"do": "zeros", "ids": [108], "shape": [2], "dtype": "float32"},
    {"do": "checkpoint", "name": "again", "arrays": {"x": 1, "w": 2}, "executors": [10], "step": 1},
    {"do": "checkpoint", "name": "forged", "step": 1},
    {"do": "seed", "seed": 3},
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "bind", "id": 110, "graph": DRAWS, "outputs": [111]},
    {"do": "forward", "executor": 110, "is_train": True},
    {"do": "free", "ids": [1, 2, 3, 4, 10, 101]},
)
"""Batches of one command that a restored session gets; none of them may be answered by 500."""


def parts_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A file's header, and the bytes behind it."""
    (length,) = struct.unpack_from("<Q", data, 8)
    return json.loads(data[START : START + length]), data[START + length :]


def forged(header: Any, payload: bytes, *, length: int | None = None) -> bytes:
    """A file with this header.

    Args:
        header: JSON, or the text itself.
        payload: the bytes behind it.
        length: what the file says of the header's length; by default that is true.
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 64) * 64)
    return _beginning(len(text) if length is None else length) + text + payload


def _beginning(length: int) -> bytes:
    return (b"opboxck1" + struct.pack("<Q", length)).ljust(START, b"\0")


def forgeries(right: bytes) -> Iterator[tuple[str, bytes]]:
    """Labels and files: every value of the header wrong in every way, and the parts of the file at odds."""
    header, payload = parts_of(right)
    yield from _at_odds(right, header, payload)
    for label, changed in mutations(header):
        yield label, forged(changed, payload)


def mutations(document: Any) -> Iterator[tuple[str, Any]]:
    """Labels and documents: JSON with each of its values wrong in every way, or missing."""
    for place in list(_places(document)):
        for value in VALUES:
            changed = copy.deepcopy(document)
            _set(changed, place, value)
            yield f"{'.'.join(map(str, place))} = {str(value)[:40]}", changed
        missing = copy.deepcopy(document)
        _at(missing, place[:-1]).pop(place[-1])
        yield f"{'.'.join(map(str, place))} missing", missing


def _at_odds(right: bytes, header: dict[str, Any], payload: bytes) -> Iterator[tuple[str, bytes]]:
    for size in (0, 1, 8, 15, 16, 63, 64, 65, 200, len(right) // 2, len(right) - len(payload), len(right) - 1):
        yield f"cut to {size} bytes", right[:size]
    yield "bytes behind the end", right + b"\0" * 64
    yield "nothing but zeros", bytes(1 << 16)
    for length in (0, 1, len(right), 1 << 32, 1 << 63, (1 << 64) - 1):
        yield f"a header of {length} bytes", forged(header, payload, length=length)
    for text in (
        b"",
        b"[]",
        b"null",
        b"{",
        b'"\xff"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" + b"0," * 400_000 + b"0]",
    ):
        yield f"the header {text[:20]!r}", forged(text, payload)
    for key in header:
        twice = json.dumps(header)[:-1] + f', "{key}": 7}}'
        yield f"{key} twice", forged(twice.encode(), payload)
        yield f"{key} twice, and unknown ones", forged({**header, key + "2": header[key]}, payload)
    first = header["arrays"][0]
    size = first["parameters"]["binary_data_size"]
    for shape in (
        [1] * 64 + first["shape"],
        [*first["shape"], *[1] * 64],
        [1 << 62, 0],
        [0, 1 << 40, 1 << 40],
        [0] * 33,
    ):
        changed = copy.deepcopy(header)
        changed["arrays"][0]["shape"] = shape
        if 0 in shape:
            changed["arrays"][0]["parameters"]["binary_data_size"] = 0
            yield f"an array of shape {shape[:5]} without bytes", forged(changed, payload[-(-size // 64) * 64 :])
        yield f"an array of shape {shape[:5]}", forged(changed, payload)
    for shape in ([1] * 64, [1 << 62, 0], [1 << 40], [1 << 31, 1 << 31, 1 << 31], [0] * 40, [1 << 70]):
        changed = copy.deepcopy(header)
        changed["blank"][0][1] = shape
        yield f"a blank array of shape {shape[:3]}", forged(changed, payload)
    listed = copy.deepcopy(header)
    listed["arrays"] = [{"name": "x", "shape": [1 << 62, 1 << 62], "datatype": "FP32", "data": [1.0]}]
    yield "values in the header", forged({**listed, "ids": {"x": 1}}, b"")
    ids = header["ids"]
    overlapping = copy.deepcopy(header)
    overlapping["ids"] = dict.fromkeys(ids, next(iter(ids.values())))
    yield "one number for all arrays", forged(overlapping, payload)
    for number in (*ids.values(), header["executors"][0]["id"]):
        overlapping = copy.deepcopy(header)
        overlapping["blank"][0][0] = number
        yield f"a blank array of number {number}", forged(overlapping, payload)
        overlapping = copy.deepcopy(header)
        overlapping["executors"][0]["id"] = number
        yield f"an executor of number {number}", forged(overlapping, payload)
    for key in ("executors", "blank", "arrays"):
        for entries in ([], header[key] * 2, header[key] * 5000):
            changed = {**copy.deepcopy(header), key: entries}
            yield f"{len(entries)} {key}", forged(changed, payload)
            if key == "executors":
                changed["random"]["executors"] = [None] * len(entries)
                yield f"{len(entries)} {key}, and places of theirs", forged(changed, payload)
    for place in (
        [1, (1 << 63) - 1, 1],
        [1 << 31, 1 << 62, 1],
        [(1 << 32) - 1, 0, 0],
        [1 << 32, 0, 0],
        [0, 0, 0],
        [1, 0, 2],
    ):
        changed = copy.deepcopy(header)
        changed["random"]["executors"] = [place]
        yield f"random numbers at {place}", forged(changed, payload)
    changed = copy.deepcopy(header)
    changed["random"]["source"] = {"number": (1 << 64) - 1, "executors": 1 << 31, "moves": 1 << 62}
    changed["random"]["executors"] = [None]
    yield "the last random numbers", forged(changed, payload)


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from _places(item, (*above, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _set(value: Any, place: tuple[Any, ...], new: Any) -> None:
    _at(value, place[:-1])[place[-1]] = new
