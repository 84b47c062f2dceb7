"""Every operator on drawn calls, in MXNet and here: values, gradients, requests, shapes, types, and who refuses what.

    make conformance ARGS="tests/conformance/test_live_operators.py -k Pooling"

OPBOX_GENERATED sets how many calls an operator gets (times CALLS); the same calls come every time. What differs and is
known to is in `known.py`, with its reason. The report at the end counts, for every operator and aspect, the calls that
agree; `reporting.py` keeps it in docs/conformance.json for the operators' page.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.cases import all_cases

from .drawing import Drawn, calls
from .examining import examine
from .known import DIFFERENT, UNCOMPARED
from .mxnet import Oracle, RefusedError
from .reporting import Tally

pytestmark = pytest.mark.conformance

CALLS = 8 * int(os.environ.get("OPBOX_GENERATED", "3"))
ROWS = {op: [case for case in all_cases() if case.op == op] for op in sorted({case.op for case in all_cases()})}


@pytest.mark.parametrize("op", ROWS)
def test_drawn_calls(oracle: Oracle, op: str, record_property: Callable[[str, Any], None]) -> None:
    if op in UNCOMPARED:
        pytest.skip(UNCOMPARED[op])
    try:
        declared = oracle.ask("arguments", op=op)[0]["arguments"]
    except RefusedError:
        pytest.skip(f"MXNet has no operator {op}")
    tally = Tally(op)

    @seed(0)
    @settings(
        max_examples=CALLS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(ROWS[op], declared))
    def run(drawn: Drawn) -> None:
        tally.add(drawn, examine(oracle, drawn))

    run()
    record_property("conformance", tally.json())
    wrong = [line for aspect, line in tally.differences if (op, aspect) not in DIFFERENT]
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:10])
