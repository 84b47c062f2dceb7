"""Datasets over HTTP: rows that come once and are taken by number, the owner's store of blocks, and named datasets."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import Got, Live, Session
from tests.contract.test_access import wait_for

ROWS = np.arange(24, dtype=np.uint8).reshape(8, 3)
BLOCKS = [hashlib.sha256(ROWS[begin : begin + 3].tobytes()).hexdigest() for begin in (0, 3, 6)]
OPEN = {"do": "dataset", "id": 1, "shape": [8, 3], "dtype": "uint8", "block_rows": 3, "blocks": BLOCKS}
PUT_ALL = {"do": "put_rows", "id": 1, "tensor": "x", "begin": 0}
KEEP = {"do": "keep_rows", "id": 1, "block_rows": 3, "blocks": [0, 1, 2]}
UNNAMED = {"shape": [8, 3], "dtype": "uint8", "block_rows": 3, "blocks": BLOCKS}


def take(id: int, **fields: Any) -> dict[str, Any]:
    return {"do": "take_rows", "id": id, "of": 1, **fields}


def fetch(id: int) -> dict[str, Any]:
    return {"do": "fetch", "id": id, "as": "y"}


def ok(answer: Got) -> Got:
    assert answer.status == 200, answer.header
    return answer


def missing(server: Live, owner: str = "ann") -> list[int]:
    """Positions of the blocks that the owner's store lacks."""
    answer = ok(server.call("POST", "/v1/blocks", {"blocks": BLOCKS}, owner=owner))
    return answer.header["missing"]  # type: ignore[no-any-return]


def put_blocks(server: Live, owner: str = "ann") -> None:
    for number, block in enumerate(BLOCKS):
        ok(server.call("PUT", f"/v1/blocks/{block}", {}, {"x": ROWS[3 * number : 3 * number + 3]}, owner=owner))


def opened(server: Live, owner: str = "ann") -> Session:
    """A session with all rows."""
    session = server.session(owner)
    ok(session.run({**OPEN, "blocks": []}, PUT_ALL, x=ROWS))
    return session


def test_rows_are_taken_by_number_with_a_cast(server: Live) -> None:
    session = server.session()
    assert ok(session.run({**OPEN, "blocks": []})).header["results"] == [
        {"command": 0, "missing": [], "shape": [8, 3], "dtype": "uint8"}
    ]
    order = np.array([5, 0, 7, 5], np.uint16)
    ok(session.run({"do": "put_rows", "id": 1, "tensor": "x", "rows": "n"}, x=ROWS[[7, 0, 5]], n=[7, 0, 5]))
    gathered = ok(session.run(take(2, rows="n"), fetch(2), n=order)).tensors["y"]
    assert gathered.dtype == np.uint8
    assert gathered.tolist() == ROWS[order].tolist()
    # Into an existing array, scaled; rows that have not come yet are an error.
    zeros = {"do": "zeros", "ids": [3], "shape": [4, 3], "dtype": "float32"}
    scaled = ok(session.run(zeros, take(3, rows="n", scale=1 / 256), fetch(3), n=order)).tensors["y"]
    assert scaled.tolist() == (ROWS[order].astype(np.float32) / 256).tolist()
    refused = session.run(take(4, begin=0, end=2))
    assert (refused.status, refused.error) == (
        409,
        "take_rows 1: expected rows that have been put, got some that have not: put them first",
    )
    ok(session.run(PUT_ALL, x=ROWS))
    cast = ok(session.run(take(4, begin=2, end=8, dtype="float16"), fetch(4))).tensors["y"]
    assert cast.dtype == np.float16
    assert cast.tolist() == ROWS[2:8].astype(np.float16).tolist()
    ok(session.run({"do": "free", "ids": [1]}))
    assert session.run(take(5, begin=0, end=1)).error == "dataset 1: expected one opened in this session, got nothing"
    session.delete()


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({**OPEN, "id": -1}, {}, "command 0 (dataset): id: expected an integer from 0 to 2**63 - 1, got -1"),
    ({**OPEN, "shape": [-1]}, {}, "command 0 (dataset): shape.0: expected an integer of 0 or more, got -1"),
    ({**OPEN, "dtype": "text"}, {}, "command 0 (dataset): dtype: expected one of 'float32', "),
    ({**OPEN, "blocks": ["../x"]}, {}, "command 0 (dataset): blocks.0: expected a SHA-256, 64 digits of 0-9 and a-f"),
    ({**OPEN, "blocks": BLOCKS[:2]}, {}, "dataset 1: blocks: expected 3 of 3 rows for 8, got 2"),
    ({**OPEN, "block_rows": 0}, {}, "command 0 (dataset): block_rows: expected an integer of 1 or more, got 0"),
    ({**OPEN, "block_rows": None}, {}, "dataset 1: block_rows: expected the rows of a block, got nothing"),
    ({"do": "dataset", "id": 1}, {}, "dataset 1: expected a shape of 1 or more dimensions and a dtype, or a name"),
    ({**OPEN, "name": "mnist"}, {}, "dataset 1: expected a name, or shape, dtype, block_rows and blocks, got both"),
    ({**OPEN, "array": "x"}, {}, "dataset 1: array: expected it beside a name, got it without one"),
    ({"do": "dataset", "id": 1, "name": "no", "array": "x"}, {}, "dataset 'no': expected one of yours, or a published"),
    ({**OPEN, "shape": [1 << 40], "blocks": []}, {}, "dataset 1: expected at most "),
    ({**OPEN, "shape": [8] * 9, "blocks": []}, {}, "dataset: expected at most 8 dimensions, got 9"),
    ({"do": "put_rows", "id": 1, "tensor": "x"}, {}, "put_rows 1: expected either rows or begin"),
    ({**PUT_ALL, "tensor": "y"}, {}, "tensor 'y': "),
    ({**PUT_ALL, "id": 3}, {}, "dataset 3: expected one opened in this session, got an array"),
    ({**PUT_ALL, "begin": 6}, {}, "put_rows 1: expected rows 0 <= begin <= end <= 8, got 6 and 9"),
    ({**PUT_ALL, "tensor": "f"}, {}, "put_rows 1: expected uint8, got float32"),
    ({**PUT_ALL, "tensor": "n"}, {}, "put_rows 1: expected rows of shape (3,), got a tensor of shape (1,)"),
    ({"do": "put_rows", "id": 1, "tensor": "x", "rows": "n"}, {}, "put_rows 1: rows: expected 3 numbers, one for each"),
    (take(9), {}, "take_rows 1: expected either rows, or begin and end"),
    (take(9, rows="n", begin=1), {}, "take_rows 1: expected either rows, or begin and end"),
    (take(9, rows="f"), {}, "take_rows 1: rows: expected a vector of integers, got shape (3, 3) of float32"),
    (take(9, rows="n"), {"n": [8]}, "take_rows 1: rows: expected numbers from 0 to 7, got 8"),
    (take(9, rows="n"), {"n": [-1]}, "take_rows 1: rows: expected numbers from 0 to 7, got -1"),
    (take(9, begin=5, end=4), {}, "take_rows 1: expected rows 0 <= begin <= end <= 8, got 5 and 4"),
    (take(9, begin=0, end=9), {}, "take_rows 1: expected rows 0 <= begin <= end <= 8, got 0 and 9"),
    (take(3, begin=0, end=1), {}, "take_rows 1: expected an array of shape (1, 3), got array 3 of shape (2, 3)"),
    (take(9, begin=0, end=1, scale=0.5), {}, "take_rows 1: scale: expected 1 for an array of uint8, got 0.5"),
    (take(9, begin=0, end=1, scale="x"), {}, "command 0 (take_rows): scale: expected a finite number, got 'x'"),
    (take(1, begin=0, end=1), {}, "array 1: expected one of this session, got a dataset"),
    ({"do": "fetch", "id": 1, "as": "y"}, {}, "array 1: expected one of this session, got a dataset"),
    ({**KEEP, "blocks": [3]}, {}, "keep_rows 1: blocks: expected numbers below 3, got 3"),
    ({**KEEP, "block_rows": 0}, {}, "command 0 (keep_rows): block_rows: expected an integer of 1 or more, got 0"),
    ({**KEEP, "id": 2}, {}, "dataset 2: expected one opened in this session, got nothing"),
]


def test_bad_commands(start: Callable[..., Live]) -> None:
    session = opened(start("none"))
    ok(session.run({"do": "zeros", "ids": [3], "shape": [2, 3], "dtype": "float32"}))
    tensors = {"x": ROWS[:3], "f": np.zeros((3, 3), np.float32), "n": np.zeros(1, np.uint8)}
    for command, others, sentence in WRONG:
        free = [{"do": "free", "ids": [1]}] if command["do"] == "dataset" else []
        if free:
            ok(session.run(*free))
        refused = session.run(command, **{**tensors, **others})
        assert 400 <= refused.status < 500, (command, refused.header)
        assert refused.error.startswith(sentence), command
        if free:
            ok(session.run({**OPEN, "blocks": []}, PUT_ALL, x=ROWS))
    # None of them has changed anything.
    assert ok(session.run(take(9, begin=0, end=8), fetch(9))).tensors["y"].tolist() == ROWS.tolist()


def test_another_session_finds_kept_blocks_and_no_other_owner(server: Live) -> None:
    session = opened(server)
    ok(session.run(KEEP))
    wait_for(lambda: missing(server) == [])
    session.delete()
    other = server.session()
    assert ok(other.run(OPEN)).header["results"][0]["missing"] == []
    assert ok(other.run(take(2, begin=0, end=8), fetch(2))).tensors["y"].tolist() == ROWS.tolist()
    assert missing(server, "bob") == [0, 1, 2]
    stranger = server.session("bob")
    assert ok(stranger.run(OPEN)).header["results"][0]["missing"] == [0, 1, 2]
    assert stranger.run(take(2, begin=0, end=1)).status == 409
    other.delete(), stranger.delete()


def test_a_session_with_code_has_its_owners_store(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session("py", code=True)
    ok(session.run({**OPEN, "blocks": []}, PUT_ALL, KEEP, x=ROWS))
    wait_for(lambda: missing(server, "py") == [])
    assert missing(server, "ann") == [0, 1, 2]
    ok(session.run({**OPEN, "id": 9}, {**take(2, begin=0, end=8), "of": 9}, fetch(2)))


def test_a_session_that_ends_amid_its_rows_leaves_what_is_whole(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session()
    ok(session.run({**OPEN, "blocks": []}, PUT_ALL, {**KEEP, "blocks": [1]}, x=ROWS[:7]))
    refused = session.run(KEEP)
    assert (refused.status, refused.error) == (
        409,
        "keep_rows 1: block 2: expected all of its rows, got some missing",
    )
    session.delete()
    wait_for(lambda: missing(server) == [0, 2])
    again = server.session()
    assert ok(again.run(OPEN)).header["results"][0]["missing"] == [0, 2]
    assert ok(again.run(take(2, begin=3, end=6), fetch(2))).tensors["y"].tolist() == ROWS[3:6].tolist()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_named_datasets_survive_a_restart_and_are_shared_when_published(
    start: Callable[..., Live], tmp_path: Path, isolation: str
) -> None:
    settings = {"OPBOX_STATE_DIR": str(tmp_path / "state")}
    server = start(isolation, **settings)
    put_blocks(server)
    arrays = {"data": UNNAMED}
    assert ok(server.call("PUT", "/v1/datasets/secret", {"arrays": arrays})).header == {"name": "secret", "bytes": 24}
    ok(server.call("PUT", "/v1/datasets/toy", {"arrays": arrays, "published": True}))
    assert server.stop() == 0
    server = start(isolation, **settings)
    listed = ok(server.call("GET", "/v1/datasets")).header
    assert listed["used_bytes"] == 24
    assert [(row["name"], row["owner"], row["yours"], row["published"]) for row in listed["datasets"]] == [
        ("secret", "ann", True, False),
        ("toy", "ann", True, True),
    ]
    assert listed["datasets"][1]["arrays"] == [{"name": "data", "shape": [8, 3], "dtype": "uint8", "bytes": 24}]
    rows = ok(server.call("GET", "/v1/datasets", owner="bob")).header["datasets"]
    assert [(row["name"], row["owner"], row["yours"]) for row in rows] == [("toy", "ann", False)]
    session = server.session("bob")
    named = {"do": "dataset", "id": 1, "array": "data"}
    ok(session.run({**named, "name": "ann/toy"}))
    assert ok(session.run(take(2, begin=0, end=8), fetch(2))).tensors["y"].tolist() == ROWS.tolist()
    for name in ("ann/secret", "toy", "ann/../toy", "ann/"):
        refused = session.run({**named, "id": 5, "name": name})
        assert (refused.status, refused.error) == (
            404,
            f"dataset '{name}': expected one of yours, or a published one as owner/name (GET /v1/datasets), got an "
            "unknown name",
        )
    wrong = session.run({**named, "id": 5, "name": "ann/toy", "array": "no"})
    assert wrong.error == "dataset 'ann/toy': array: expected one of data, got 'no'"
    assert server.call("DELETE", "/v1/datasets/toy", owner="bob").status == 404
    assert ok(server.call("DELETE", "/v1/datasets/toy")).header == {"deleted": "toy"}
    assert session.run({**named, "id": 6, "name": "ann/toy"}).status == 404
    # What a session has taken stays its own.
    assert ok(session.run(take(7, begin=0, end=1), fetch(7))).tensors["y"].tolist() == ROWS[:1].tolist()


def test_blocks_and_names_that_are_wrong(server: Live) -> None:
    absent = "0" * 64
    for method, path, body, tensors, status, sentence in (
        ("POST", "/v1/blocks", {}, {}, 400, "blocks: expected "),
        ("POST", "/v1/blocks", {"blocks": ["x"]}, {}, 400, "blocks.0: expected a SHA-256, 64 digits of 0-9 and a-f"),
        ("PUT", "/v1/blocks/x", {}, {"x": ROWS}, 400, "block 'x': expected the SHA-256 of its bytes, 64 digits"),
        ("PUT", f"/v1/blocks/{absent}", {}, {}, 400, "inputs: expected one tensor with the block's bytes, got 0"),
        ("PUT", f"/v1/blocks/{absent}", {}, {"x": ROWS}, 400, "block 000000000000…: expected bytes whose SHA-256 is"),
        ("PUT", "/v1/datasets/a", {}, {}, 400, "arrays: expected "),
        ("PUT", "/v1/datasets/a", {"arrays": {}}, {}, 400, "arrays: "),
        ("PUT", "/v1/datasets/-a", {"arrays": {"x": UNNAMED}}, {}, 400, "dataset '-a': expected up to 64 letters"),
        ("PUT", "/v1/datasets/a", {"arrays": {"x": {**UNNAMED, "shape": []}}}, {}, 400, "arrays.x.shape: expected "),
        ("PUT", "/v1/datasets/a", {"arrays": {"x": {**UNNAMED, "dtype": "i"}}}, {}, 400, "arrays.x.dtype: expected "),
        (
            "PUT",
            "/v1/datasets/a",
            {"arrays": {"x": {**UNNAMED, "block_rows": 4}}},
            {},
            400,
            "arrays.x.blocks: expected 2",
        ),
        ("PUT", "/v1/datasets/a", {"arrays": {"x": UNNAMED}, "published": 1}, {}, 400, "published: expected true or"),
        (
            "PUT",
            "/v1/datasets/a",
            {"arrays": {"x": {**UNNAMED, "blocks": [absent] * 3}}},
            {},
            404,
            "dataset 'a': array 'x': expected its blocks in your store, got 3 of 3 missing: send them first",
        ),
        ("DELETE", "/v1/datasets/none", {}, {}, 404, "dataset 'none': expected one of yours"),
    ):
        refused = server.call(method, path, body, tensors, owner="py")
        assert refused.status == status, (path, refused.header)
        assert refused.error.startswith(sentence), refused.error
    assert server.call("GET", "/v1/datasets", owner="monitor").status == 403


def test_the_quota_and_the_time_to_live(start: Callable[..., Live], tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = start("process", OPBOX_STATE_DIR=str(state), OPBOX_MAX_DATASET_BYTES="30", OPBOX_DATASET_TTL_S="100")
    put_blocks(server)  # 24 bytes
    ok(server.call("PUT", "/v1/datasets/a", {"arrays": {"x": {**UNNAMED, "shape": [6, 3], "blocks": BLOCKS[:2]}}}))
    # Blocks with a name are safe: the third one goes for a new block, and then there is no space left.
    other, large = np.full((1, 9), 7, np.uint8), np.zeros((1, 13), np.uint8)
    ok(server.call("PUT", f"/v1/blocks/{hashlib.sha256(other).hexdigest()}", {}, {"x": other}))
    assert missing(server) == [2]
    full = server.call("PUT", f"/v1/blocks/{hashlib.sha256(large).hexdigest()}", {}, {"x": large})
    assert (full.status, full.error) == (
        507,
        "datasets: expected at most 30 bytes of an owner's, got 13 more beside the named ones: delete one (DELETE "
        "/v1/datasets/{name}), or ask the server's administrator for a larger quota (owners in OPBOX_TOKENS_FILE)",
    )
    # What a training saves and the quota has no space for is left out, without a word.
    session = server.session()
    ok(session.run({**OPEN, "shape": [1, 13], "block_rows": 1, "blocks": []}, PUT_ALL, x=large))
    ok(session.run({**KEEP, "block_rows": 1, "blocks": [0]}))
    # Unused for its time to live, a block without a name goes.
    files = list(state.glob("datasets/*/blocks/*"))
    for path in files:
        os.utime(path, (time.time() - 1000,) * 2)
    wait_for(lambda: missing(server) == [2] and server.call("GET", "/v1/datasets").header["used_bytes"] == 18)


def test_no_quota_no_datasets(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_MAX_DATASET_BYTES="0")
    refused = server.call("PUT", f"/v1/blocks/{BLOCKS[0]}", {}, {"x": ROWS[:3]})
    assert refused.status == 507
    assert refused.error.startswith("datasets: expected none, as your quota is 0 bytes, got a block: ask the server's")
    session = server.session()
    assert server.call("GET", session.path).header["limits"]["dataset_bytes"] == 0
