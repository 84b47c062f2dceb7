"""What every operator says to a call that is wrong: one sentence, with the node, and never somebody else's traceback.

Calls are made from the operator's first row in the table: a parameter that does not exist, one that is missing, values
of the wrong kind, inputs of another rank or size, too many and too few. Each is refused in a sentence, or taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.params import accepted_values
from opbox_protocol.errors import InternalError, LimitError, MXNetError
from tests.cases import all_cases
from tests.cases.case import Case
from tests.cases.values import inputs

from .one_call import call_graph, run_call

FIRST: dict[str, Case] = {}
for _case in all_cases():
    _op = registry.get(_case.op)
    if _op.num_visible_outputs(_op.parse({key: str(value) for key, value in _case.attrs.items()})):
        FIRST.setdefault(_case.op, _case)

Wrong = tuple[str, dict[str, Any], dict[str, Any]]
"""What is wrong, the parameters, the arrays."""

# How Python, NumPy and pydantic say what opbox is to say itself.
FOREIGN = re.compile(
    r"Traceback|broadcast together with|could not be broadcast|cannot reshape array|out of bounds for axis|operands|"
    r"unhashable|NoneType|object has no attribute|index out of range|ufunc|(?<!_npi_)einsum|ValueError|TypeError|"
    r"pydantic|not aligned|must match exactly"
)


def _wrong_parameters(case: Case, arrays: dict[str, Any]) -> Iterator[Wrong]:
    attrs = dict(case.attrs)
    yield "a parameter that does not exist", {**attrs, "no_such_parameter": 1}, arrays
    for name, field in registry.get(case.op).params.model_fields.items():
        if field.is_required():
            yield f"without {name}", {key: value for key, value in attrs.items() if key != name}, arrays
        if accepted_values(field.annotation) != "a string":
            yield f"{name} nonsense", {**attrs, name: "nonsense"}, arrays
        for value in (-99, 99, (99, 99, 99, 99, 99), (-2,), (), "None"):
            yield f"{name} {value}", {**attrs, name: value}, arrays


def _wrong_inputs(case: Case, arrays: dict[str, Any]) -> Iterator[Wrong]:
    attrs = dict(case.attrs)
    yield "an input too many", attrs, {**arrays, "one_too_many": np.ones((2, 2), np.float32)}
    for name, array in arrays.items():
        yield f"without {name}", attrs, {key: value for key, value in arrays.items() if key != name}
        others = {"scalar": (), "more dimensions": (1, 2, *array.shape), "empty": (0,) * array.ndim}
        if array.ndim:
            others |= {"fewer dimensions": array.shape[1:], "longer": (*array.shape[:-1], array.shape[-1] + 1)}
            others["wider"] = (array.shape[0] + 1, *array.shape[1:])
        for what, shape in others.items():
            yield f"{name} {what}", attrs, {**arrays, name: np.resize(array, shape).astype(array.dtype)}
        for dtype in ("int8", "float16"):
            yield f"{name} {dtype}", attrs, {**arrays, name: np.nan_to_num(array).clip(-100, 100).astype(dtype)}


def _said(attrs: dict[str, Any], arrays: dict[str, Any], case: Case) -> str | None:
    """The refusal; None when the call is taken."""
    try:
        run_call(call_graph(case.op, attrs, list(arrays)), arrays, [], None, is_train=case.is_train)
    except InternalError as error:
        return f"InternalError: {error}"
    except LimitError:
        return ""
    except MXNetError as error:
        message = str(error)
        if "\n" in message or FOREIGN.search(message):
            return f"not a sentence of ours: {message}"
        if case.op not in message and not re.search(r"\bop(_|\b)", message):
            return f"does not name the node: {message}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("op", sorted(FIRST))
def test_a_wrong_call_is_refused_in_a_sentence(op: str) -> None:
    case = FIRST[op]
    arrays = inputs(case, case.dtypes[0])
    wrong = []
    for calls in (_wrong_parameters(case, arrays), _wrong_inputs(case, arrays)):
        for what, attrs, inputs_of_call in calls:
            said = _said(attrs, inputs_of_call, case)
            if said:
                wrong.append(f"{what}: {said}")
    assert not wrong, f"{len(wrong)} refusals:\n" + "\n".join(wrong[:12])
