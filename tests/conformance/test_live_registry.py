"""The registry against MXNet's own: argument names, parameter names, and the defaults."""

from __future__ import annotations

import re
from typing import Any

import pytest

from opbox_ops import registry
from opbox_protocol.errors import ParamError

from .mxnet import Oracle, RefusedError

pytestmark = pytest.mark.conformance

# MXNet lists _arange's parameters as _linspace's; it reads others.
MISDECLARED = {"_linspace"}
ARRAYS = ("NDArray", "Symbol")


def _forward() -> list[str]:
    return [name for name in registry.names() if not name.startswith("_backward") and name not in MISDECLARED]


def _default(declared: str) -> str | None:
    """The default in MXNet's words ("int, optional, default='1'"); None where the parameter is required."""
    match = re.search(r"default=(.*)$", declared)
    if match is None:
        return None
    return match.group(1).strip().strip("'")


def _equal(ours: Any, theirs: Any) -> bool:
    # A shape of which nothing is known: None here, () in MXNet.
    if ours is None:
        return theirs in (None, "None", ())
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == pytest.approx(theirs, rel=1e-6)
    return bool(ours == theirs)


@pytest.mark.parametrize("name", _forward())
def test_arguments_and_defaults(oracle: Oracle, name: str) -> None:
    op = registry.get(name)
    try:
        theirs = oracle.ask("arguments", op=name)[0]["arguments"]
    except RefusedError:
        pytest.skip(f"MXNet has no operator {name}")
    params = {key: type_text for key, type_text in theirs.items() if not any(word in type_text for word in ARRAYS)}
    arrays = [key for key, type_text in theirs.items() if key not in params]
    if isinstance(op.inputs, tuple):
        # Operators of MXNet's first interface list no auxiliary states.
        listed = [slot.name for slot in op.inputs if not slot.aux or slot.name in arrays]
        assert listed == arrays, f"inputs of {name}"
    fields = op.params.model_fields
    lacking = set(params) - set(fields) - {"num_args"}
    assert not lacking, f"MXNet's {name} takes {sorted(lacking)} too"
    # num_args counts the inputs: MXNet declares it apart from the arguments.
    required = [key for key in fields if key not in params and fields[key].is_required() and key != "num_args"]
    assert not required, f"{name} requires {required}, MXNet has no such parameter"
    for key, type_text in params.items():
        default = _default(type_text)
        if default is None or key not in fields:
            continue
        assert not fields[key].is_required(), f"{name}: {key} is required here, in MXNet it is {default}"
        needed = {k: _some(params[k]) for k in params if k in fields and fields[k].is_required()}
        assert all(value is not None for value in needed.values()), f"{name}: a value for each of {needed}"
        plain = op.parse(needed)
        try:
            parsed = op.parse({**needed, key: default})
        except ParamError as error:
            pytest.fail(f"MXNet's default {default!r} of {name}'s {key}: {error}")
        assert _equal(getattr(plain, key), getattr(parsed, key)), (
            f"{name}: {key} is {getattr(plain, key)!r} by default, in MXNet {default!r}"
        )


def _some(declared: str) -> Any:
    """Any value of this declared type."""
    if declared.startswith("{"):
        return declared[1:].partition("}")[0].split(",")[0].strip().strip("'")
    if declared.startswith(("Shape", "tuple")):
        return "(1,)"
    if "int" in declared or "long" in declared:
        return "1"
    if "float" in declared or "double" in declared:
        return "0.5"
    return "True" if "bool" in declared else "1"
