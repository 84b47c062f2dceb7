"""Hypothesis strategies for calls of an operator: rows of the table, with sizes, parameters and types drawn anew.

A row says how the shapes of an operator's inputs hang together, and which of its parameters are sizes. A drawn call
renames the row's sizes (2 becomes 5 wherever it stands, in shapes and parameters), gives other parameters values of the
type that MXNet declares, and now and then breaks something: a rank, a size, an axis. What is broken both refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.cases.case import Arg, Case
from tests.cases.values import as_arg, is_float

__all__ = ["Drawn", "calls", "resized"]

DTYPES = ("float32",) * 6 + ("float64", "float64", "float16", "int32", "int64", "uint8", "int8")
SIZES = (1, 1, 2, 3, 4, 5, 7)
FIXED = {"num_args", "num_weights", "num_arrays", "num_outputs", "ctx", "op_type", "info", "workspace", "subgraph"}
"""Parameters that count inputs or outputs, or name what the row has no other of."""
NUMBERS = (0.0, 0.5, 1.0, 2.0, -1.0, 0.1)


@dataclass(frozen=True)
class Drawn:
    """A call: a row, the type that it is run in, and whether gradients are written or added."""

    case: Case
    dtype: str
    req: str


def _value(declared: str, now: str | None) -> st.SearchStrategy[str]:
    """A value of a parameter that MXNet declares so."""
    kind = declared.partition(",")[0] if not declared.startswith("{") else declared[: declared.index("}") + 1]
    if kind.startswith("{"):
        return st.sampled_from(re.findall(r"'([^']*)'", kind))
    if kind.startswith("boolean"):
        return st.sampled_from(["True", "False"])
    if kind.startswith(("Shape", "tuple")):
        length = now.count(",") + 1 if now and now not in ("()", "None") else 2
        number: st.SearchStrategy[Any] = st.sampled_from(NUMBERS if "float" in kind else (0, 1, 1, 2, 3, -1))
        return st.lists(number, min_size=max(length - 1, 0), max_size=length + 1).map(lambda v: str(tuple(v)))
    if kind.startswith(("float", "double", "real")):
        return st.sampled_from(NUMBERS).map(str)
    if kind.startswith(("int", "long")):
        return st.sampled_from(["-2", "-1", "0", "1", "2", "3"] + (["None"] if "None" in declared else []))
    return st.just(now or "None")


def _renamed(value: Any, sizes: Mapping[int, int]) -> Any:
    """An attribute with its sizes renamed."""
    if isinstance(value, bool) or not isinstance(value, int | tuple | list):
        return value
    if isinstance(value, int):
        return sizes.get(value, value)
    return tuple(_renamed(element, sizes) for element in value)


def _reshaped(arg: Arg, shape: tuple[int, ...]) -> Arg:
    values = arg.values
    if values is not None and shape != tuple(arg.shape):
        values = np.resize(np.asarray(values), shape).tolist()
    return replace(arg, shape=shape, values=values)


def resized(case: Case, sizes: Mapping[int, int]) -> Case:
    """The row with its sizes renamed, in shapes and (unless one is 0) in parameters; all its inputs are `Arg`s then."""
    named = {name: as_arg(arg) for name, arg in case.inputs.items()}
    inputs = {name: _reshaped(a, tuple(sizes.get(d, d) for d in a.shape)) for name, a in named.items()}
    attrs = {key: value for key, value in case.attrs.items() if value is not None}
    if 0 not in sizes.values():
        attrs = {key: value if key in FIXED else _renamed(value, sizes) for key, value in attrs.items()}
    return replace(case, inputs=inputs, attrs=attrs)


@st.composite
def calls(draw: st.DrawFn, rows: Sequence[Case], declared: Mapping[str, str]) -> Drawn:
    """Calls of one operator.

    Args:
        draw: hypothesis'.
        rows: its rows in the table.
        declared: the type that MXNet declares for each of its parameters.
    """
    case = draw(st.sampled_from(list(rows)))
    inputs = {name: as_arg(arg) for name, arg in case.inputs.items()}
    attrs = {key: value for key, value in case.attrs.items() if value is not None}
    sizes: dict[int, int] = {}
    present = sorted({d for arg in inputs.values() for d in arg.shape})
    if draw(st.booleans()):
        for size in present:
            if size > 1 and draw(st.booleans()):
                sizes[size] = draw(st.sampled_from(SIZES))
    if present and draw(st.integers(0, 15)) == 0:
        sizes[draw(st.sampled_from(present))] = 0
    if sizes:
        case = resized(case, sizes)
        inputs, attrs = dict(case.inputs), dict(case.attrs)
    free = [
        key
        for key, type_text in declared.items()
        if key not in FIXED and not any(word in type_text for word in ("NDArray", "Symbol", "ptr"))
    ]
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 2))) if free else 0):
        key = draw(st.sampled_from(free))
        attrs[key] = draw(_value(declared[key], None if key not in attrs else str(attrs[key])))
    if inputs and 0 not in sizes.values() and draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(sorted(inputs)))
        inputs[name] = _reshaped(inputs[name], draw(_broken(tuple(inputs[name].shape))))
    dtype = case.dtypes[0] if draw(st.integers(0, 1)) else draw(st.sampled_from(DTYPES))
    values = [np.asarray(arg.values) for arg in inputs.values() if arg.values is not None]
    if not is_float(dtype) and not all(np.isfinite(value).all() for value in values):
        # No whole number stands for infinity.
        dtype = case.dtypes[0]
    # What is drawn between two limits that are not one is random.
    drawn = float(attrs.get("min_factor", 0)) != float(attrs.get("max_factor", 0))
    changed = replace(case, inputs=inputs, attrs=attrs, dtypes=(dtype,), random=case.random or drawn)
    return Drawn(changed, dtype, draw(st.sampled_from(["write", "write", "add"])))


def _broken(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Another rank, or another size."""
    others = [(1, *shape), (*shape, 2), shape[1:] or (1,), (*shape[:-1], shape[-1] + 1) if shape else (2,)]
    return st.sampled_from([other for other in others if other != shape])
