"""Which computes may be chosen: GPU computes by their self-check, CPU computes without a question."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry, trust
from opbox_ops.compute import LEVELS, ArraySpec, CallSpec
from opbox_ops.infer import all_same_shape
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_ops.registry import Op
from opbox_ops.selfcheck.comparison import difference
from opbox_ops.selfcheck.row import Input, Row, draw
from opbox_ops.selfcheck.table import ROWS

NAME = "_toy_checked/cuda.toy"


@pytest.fixture(autouse=True)
def _no_verdict() -> Iterator[None]:
    trust.forget()
    yield
    trust.forget()


def toy() -> Op:
    """An operator with a compute of opbox's own above the reference on each device."""

    def compute(p: Any, ctx: Any, inputs: Any, outputs: Any) -> None:
        """Never run."""

    op = Op("_toy_checked", NoParams, ("data",), ("output",), (), "")
    op.infer_shape(all_same_shape)
    op.compute()(compute)
    fast = partial(compute)
    fast.func.__module__ = "opbox_ops.cuda.toy"
    op.compute("gpu", "cpu", level="generated")(fast)
    return op


def level_of(op: Op, device: str = "gpu", dtype: str = "float32") -> str:
    spec = ArraySpec((2,), np.dtype(dtype))
    return op.choose(NoParams(), CallSpec(device, (spec,), (spec,))).level


def test_without_a_verdict_all_are_trusted() -> None:
    assert level_of(toy()) == "generated"


def test_what_is_wrong_falls_to_the_next_level() -> None:
    op = toy()
    trust.follow("gpu:0", {(NAME, "float32"): "differs from NumPy", (NAME, "float64"): ""})
    assert (level_of(op), level_of(op, dtype="float64")) == ("reference", "generated")
    # A type that was not checked follows the others.
    assert level_of(op, dtype="float16") == "reference"


def test_what_was_not_checked_is_not_used() -> None:
    trust.follow("gpu:0", {})
    assert level_of(toy()) == "reference"


def test_what_ended_a_process_is_used_for_no_type() -> None:
    trust.follow("gpu:0", {(NAME, "float32"): "", (NAME, trust.ANY_TYPE): "its process ended"})
    assert level_of(toy()) == "reference"


def test_a_process_with_two_devices_uses_what_is_right_on_both() -> None:
    trust.follow("gpu:0", {(NAME, "float32"): ""})
    assert level_of(toy()) == "generated"
    trust.follow("gpu:1", {(NAME, "float32"): "differs from NumPy"})
    assert level_of(toy()) == "reference"


def test_a_device_where_everything_is_wrong() -> None:
    trust.follow("gpu:0", {(NAME, "float32"): "", (trust.ANY_COMPUTE, trust.ANY_TYPE): "a small network differs"})
    assert level_of(toy()) == "reference"


def test_the_cpu_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    op = toy()
    trust.follow("gpu:0", {})
    monkeypatch.setattr(trust, "is_trusted", None)
    assert level_of(op, "cpu") == "generated"
    assert not any(compute.name for name in registry.names() for compute in registry.get(name).computes("cpu"))


def test_computes_of_other_packages_are_not_checked() -> None:
    assert trust.compute_name("softmax", toy) is None
    assert trust.compute_name("softmax", partial(partial(level_of))) is None


def operators_of(row: Row) -> set[str]:
    """The operators that a row calls: its own, and those of its gradient."""
    op = registry.get(row.op)
    attrs, _ = row.calls(row.types[0])[0]
    params = op.parse(attrs)
    node = Node(op, op.name, attrs, params, tuple(Entry(Node(None, name)) for name in op.input_names(params)))
    rule = op.get_attr("FGradient") if row.gradient else None
    entries = rule(node, [Entry(Node(None, "head")) for _ in range(node.num_outputs)]) if rule is not None else []
    names, waiting = {op.name}, [entry.node for entry in entries if entry is not None]
    while waiting:
        inner = waiting.pop()
        if inner.op is not None and inner is not node:
            names.add(inner.op.name)
            waiting += [entry.node for entry in inner.inputs]
    return names


def test_every_gpu_compute_above_the_reference_has_a_row() -> None:
    called = set().union(*map(operators_of, ROWS))
    missing = sorted(
        compute.name
        for name in registry.names()
        for compute in registry.get(name).computes("gpu")
        if compute.rank > LEVELS.index("reference") and compute.name and name not in called
    )
    assert not missing, (
        f"{missing[0]}: expected a Row that calls it in ops/opbox_ops/selfcheck/ (layers.py, arrays.py, images.py or "
        "draws.py): the operator, inputs of a small odd shape and of many blocks, and its parameters"
    )


@pytest.mark.parametrize("kind", ["float", "int", "distinct", "boxes", "scored", "labelled", "regions"])
def test_inputs_are_the_same_each_time(kind: str) -> None:
    shape = (3, {"boxes": 4, "regions": 5, "labelled": 5}.get(kind, 6))
    spec = Input(shape, 0, 4, kind)
    first = draw(spec, "float32", "softmax", 0)
    assert first.shape == shape
    np.testing.assert_array_equal(first, draw(spec, "float32", "softmax", 0))


def test_what_counts_as_different() -> None:
    x = np.linspace(-1, 1, 101, dtype="f")
    assert difference(x, x) == difference(x, x + np.float32(1e-6)) == ""
    assert difference(x, x[::-1]).startswith("differs from NumPy: expected -1.0 at (0,), got 1.0")
    assert difference(np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, 1.0])) == ""
    assert "expected 1.0 at (0,), got nan" in difference(np.ones(1), np.full(1, np.nan))
    assert "expected 3 at (1,), got 4" in difference(np.array([1, 3]), np.array([1, 4]))
    assert difference(x, x[::-1], "order") == ""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 5000))
    assert difference(one, other, "draws") == ""
    assert "another mean" in difference(one, other + 0.5, "draws")
    assert "another deviation" in difference(one, other * 2, "draws")
    assert "not finite" in difference(one, np.full(5000, np.inf), "draws")
