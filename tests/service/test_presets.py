"""What the page's form of each operator begins with runs, by the routes that the form calls.

`tests/page` presses the buttons themselves, where there is a browser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_protocol.datatypes import DATATYPES
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from tests.cases.presets import FILE, WITHOUT, graph_of, presets

PRESETS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(Settings())
    yield engine
    engine.close()


def test_the_file_is_current() -> None:
    assert presets() == PRESETS, "run python -m tests.cases.presets"


def test_every_operator_has_one_or_says_why_not() -> None:
    ops = [registry.get(name) for name in registry.names()]
    listed = {op.name for op in ops if not op.is_backward and registry.module(op.name).startswith("opbox_ops.")}
    assert listed == set(PRESETS)
    assert {name for name, preset in PRESETS.items() if "why" in preset} == set(WITHOUT)


@pytest.mark.parametrize("name", sorted(set(PRESETS) - set(WITHOUT)))
def test_it_runs_at_the_first_click(engine: Engine, name: str) -> None:
    op, preset = registry.get(name), PRESETS[name]
    attrs, entries = preset.get("attrs", {}), preset["inputs"]
    names = op.input_names(op.parse(attrs))
    assert set(entries) <= set(names)
    graph = graph_of(op, attrs, names)
    shapes = {name: entry["shape"] for name, entry in entries.items()}
    inferred, _ = engine.call("POST", "/v1/infer_shape", {"graph": graph, "shapes": shapes})
    pairs = [
        *zip(inferred["arg_names"], inferred["arg_shapes"], strict=True),
        *zip(inferred["aux_names"], inferred["aux_shapes"], strict=True),
    ]
    rng = np.random.default_rng(0)
    arrays = {name: _array(rng, entries.get(name, {"shape": shape})) for name, shape in pairs}
    _, outputs = engine.call("POST", "/v1/forward", {"graph": graph}, arrays)
    assert len(outputs) == op.num_visible_outputs(op.parse(attrs))
    if op.get_attr("FGradient") is not None:
        heads = {
            f"head_grad:{name}": np.ones(shape, np.float32)
            for name, shape in zip(inferred["out_names"], inferred["out_shapes"], strict=True)
        }
        body = {"graph": graph, "parameters": {"is_train": True}}
        engine.call("POST", "/v1/backward", body, arrays | heads)


def _array(rng: np.random.Generator, entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The values that the form fills in: `drawn` in page/values.js."""
    shape, dtype = tuple(entry["shape"]), DATATYPES[entry.get("datatype", "FP32")]
    if "values" in entry:
        return np.array(entry["values"], np.float64).astype(dtype).reshape(shape)
    if "low" not in entry:
        return rng.normal(size=shape).astype(dtype)
    if entry.get("kind") == "distinct":
        return (rng.permutation(prod(shape)) + entry["low"]).astype(dtype).reshape(shape)
    if entry.get("kind") == "int":
        return rng.integers(int(entry["low"]), int(entry["high"]), shape, endpoint=True).astype(dtype)
    return rng.uniform(entry["low"], entry["high"], shape).astype(dtype)
