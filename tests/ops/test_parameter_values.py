"""Every operator has rows in the table, and these use every value of its parameters.

That is each value of an enumeration, both booleans, None and something else where None is possible, and a number beside
the default.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from opbox_ops import registry
from opbox_ops.params import Params
from tests.cases import all_cases

IDLE = ("has no effect", "accepted")
"""What the descriptions of parameters say that are there for MXNet's files alone."""
SOMETHING = object()
UNUSED = {"bfloat16": "NumPy has no such type."}
"""Values that no row uses."""

FREE, NEEDED = "A call alone does not tell the shape.", "It is refused: the parameter is required."
DRAWN = "uniform normal gamma exponential poisson negative_binomial generalized_negative_binomial randint"
FLAT = "It is refused: images have two spatial dimensions."
INITIAL = "It is refused: MXNet starts from nothing else than its own value."
SOFTMAX = "It is refused: only softmax takes lengths."
ABSENT: dict[tuple[str, str], tuple[tuple[Any, ...], str]] = {
    **{(op, "shape"): ((None,), FREE) for op in ("_full", "_ones", "_zeros", "_npi_identity")},
    **{(f"_random_{name}", "shape"): ((None,), FREE) for name in DRAWN.split()},
    **{(op, "shape"): ((None,), NEEDED) for op in ("_ravel_multi_index", "_unravel_index", "_sample_unique_zipfian")},
    ("_arange", "infer_range"): ((True,), FREE),
    ("moments", "axes"): ((None,), NEEDED),
    ("SequenceReverse", "axis"): ((0,), "It is refused: time is the first axis."),
    ("_contrib_boolean_mask", "axis"): ((0,), "It is refused: rows are chosen."),
    ("_contrib_DeformableConvolution", "layout"): (("NCW", "NCDHW"), FLAT),
    ("_contrib_ModulatedDeformableConvolution", "layout"): (("NCW", "NCDHW"), FLAT),
    **{(op, "use_length"): ((True,), SOFTMAX) for op in ("log_softmax", "softmin")},
    **{(f"_np_{name}", "initial"): ((SOMETHING,), INITIAL) for name in ("sum", "prod", "max", "min")},
    ("_npi_mean", "initial"): ((SOMETHING,), INITIAL),
    ("Embedding", "dtype"): (("bool",), "Weights are numbers."),
}
"""By operator and parameter, values that no row can have (for numbers, the default that it stays at), and why."""


def _values(annotation: Any) -> list[Any]:
    """The values that rows must use: SOMETHING for any that is not None; nothing where there is no such list."""
    if get_origin(annotation) is Annotated:
        return _values(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if value not in UNUSED]
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is tuple or type(None) not in get_args(annotation):
        return []
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return [None, *(value for part in parts for value in _values(part) or [SOMETHING])]


def _lacking(op: registry.Op, rows: list[Params]) -> list[str]:
    lacking = []
    for key, field in op.params.model_fields.items():
        if any(word in (field.description or "").lower() for word in IDLE):
            continue
        used = [None if getattr(row, key) == "None" else getattr(row, key) for row in rows]
        absent = ABSENT.get((op.name, key), ((), ""))[0]
        wanted = _values(field.annotation)
        for value in wanted:
            if value is SOMETHING:
                present = any(u is not None for u in used)
            else:
                present = (None if value == "None" else value) in used
            if not present and value not in absent:
                lacking.append(f"{key}={value}")
        free = not wanted and not field.is_required() and field.default not in absent
        if free and all(u == field.default for u in used):
            lacking.append(f"{key} beside {field.default}")
    return lacking


def _rows() -> dict[str, list[Params]]:
    rows: dict[str, list[Params]] = defaultdict(list)
    for case in all_cases():
        op = registry.get(case.op)
        rows[op.name].append(op.parse({key: str(value) for key, value in case.attrs.items()}))
    return rows


ROWS = _rows()
FORWARD = [
    name
    for name in registry.names()
    if not registry.get(name).is_backward
    and not name.startswith("_backward")
    and not registry.get(name).get_attr("TSubgraphs")  # tests/control_flow has networks of them
]


@pytest.mark.parametrize("name", FORWARD)
def test_rows_use_every_value_of_every_parameter(name: str) -> None:
    assert ROWS[name], "it has no row"
    assert _lacking(registry.get(name), ROWS[name]) == []


@pytest.mark.parametrize(("name", "key"), ABSENT)
def test_what_is_said_to_be_impossible_is_a_parameter(name: str, key: str) -> None:
    assert key in registry.get(name).params.model_fields
