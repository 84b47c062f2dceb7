"""Documents of named datasets that nobody has checked before they were written: found by nobody, or opened in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import BadRequestError, MXNetError, error_to_json
from opbox_service.dataset_store import NamedDataset
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from tests.forged_checkpoints import mutations

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
BLOCKS = [hashlib.sha256(ROWS[start : start + 4].tobytes()).hexdigest() for start in (0, 4)]
RIGHT = {
    "arrays": {"x": {"shape": [6, 2], "dtype": "float32", "block_rows": 4, "blocks": BLOCKS}},
    "published": True,
    "owner": "ann",
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    one = Engine(Settings(state_dir=tmp_path, max_rank=8, max_session_bytes=8 << 20))
    for start, block in zip((0, 4), BLOCKS, strict=True):
        one.call("PUT", f"/v1/blocks/{block}", {}, {"rows": ROWS[start : start + 4]}, owner="ann")
    yield one
    one.close()


def forgeries() -> Iterator[tuple[str, Any]]:
    yield from mutations(RIGHT)
    for shape in ([1] * 33, [1] * 9, [0, 1 << 40, 1 << 40], [1 << 62, 0], [1 << 60], [1 << 70], [6]):
        yield f"shape {shape[:3]}", {**RIGHT, "arrays": {"x": {**RIGHT["arrays"]["x"], "shape": shape}}}  # type: ignore[index]
    for rows in (1 << 62, 1 << 70):
        array = {"shape": [rows, 0], "dtype": "bool", "block_rows": rows, "blocks": BLOCKS[:1]}
        yield f"{rows} rows", {**RIGHT, "arrays": {"x": array}}
    yield "65 arrays", {**RIGHT, "arrays": {str(i): RIGHT["arrays"]["x"] for i in range(65)}}  # type: ignore[index]


def test_another_owners_session_meets_no_fault_of_the_server(engine: Engine, tmp_path: Path) -> None:
    engine.call("PUT", "/v1/datasets/d", {key: RIGHT[key] for key in ("arrays", "published")}, owner="ann")
    (file,) = tmp_path.rglob("d.json")
    path = "/v1/sessions/{}/commands".format(engine.call("POST", "/v1/sessions", {}, owner="bob")[0]["id"])
    batch = [
        {"do": "dataset", "id": 1, "name": "ann/d", "array": "x"},
        {"do": "take_rows", "id": 2, "of": 1, "begin": 0, "end": 5},
        {"do": "fetch", "id": 2, "as": "y"},
    ]
    file.write_text(json.dumps(RIGHT))
    fetched = engine.call("POST", path, {"commands": batch, "wait": True}, owner="bob")[1]
    np.testing.assert_array_equal(fetched["y"], ROWS[:5])
    faults = []
    texts = [(label, json.dumps(document)) for label, document in forgeries()]
    for label, text in [*texts, ("too deep", "[" * 100_000), ("no text", "\xff"), ("nothing", "")]:
        file.write_text(text, encoding="latin-1")
        calls: list[tuple[str, str, Any, str]] = [
            ("POST", path, {"commands": [{"do": "free", "ids": [1, 2]}, *batch], "wait": True}, "bob"),
            ("POST", "/v1/blocks", {"blocks": BLOCKS}, "ann"),
        ]
        for method, where, body, owner in calls:
            try:
                engine.call(method, where, body, owner=owner)
            except Exception as error:
                if not (isinstance(error, MXNetError) and error_to_json(error)[0] != 500):
                    faults.append(f"{label}: {where}: {type(error).__name__}: {error}")
    assert not faults, "\n".join([f"{len(faults)} faults", *faults[:40]])


def test_a_document_from_a_process_of_code_is_refused_by_a_sentence() -> None:
    array = RIGHT["arrays"]["x"]  # type: ignore[index]
    for wrong, sentence in (
        ({**RIGHT, "published": 1}, "published: expected true or false, got 1"),
        ({**RIGHT, "arrays": {}}, "arrays: expected 1 or more items"),
        (
            {**RIGHT, "arrays": {"x": {**array, "block_rows": 0}}},
            "arrays.x.block_rows: expected an integer of 1 or more",
        ),
        (
            {**RIGHT, "arrays": {"x": {**array, "shape": [7 << 60]}}},
            "arrays.x.blocks: expected 2017612633061982208 of 4",
        ),
        ({**RIGHT, "arrays": {"x": {**array, "dtype": "object"}}}, "arrays.x.dtype: expected "),
        ({**RIGHT, "x": 1}, "unknown field 'x': expected arrays, published, owner"),
    ):
        with pytest.raises(BadRequestError) as raised:
            NamedDataset.from_json(wrong)
        assert str(raised.value).startswith(sentence), raised.value


def test_rows_without_bytes_count_too(engine: Engine) -> None:
    """Each row has a flag that says whether it has been put."""
    path = "/v1/sessions/{}/commands".format(engine.call("POST", "/v1/sessions", {}, owner="bob")[0]["id"])
    command = {"do": "dataset", "id": 1, "shape": [1 << 40, 0], "dtype": "float32"}
    with pytest.raises(MXNetError, match=r"dataset 1: expected at most \d+ bytes, .* got 1099511627776: send"):
        engine.call("POST", path, {"commands": [command], "wait": True}, owner="bob")
