"""Frames whose shapes no array can have, and operators that a worker has not run before."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import symbol, var

__all__ = ["ATTACKS"]

DATATYPES = ("BOOL", "INT8", "INT64", "UINT64", "FP16", "BF16", "FP32", "FP64")
SHAPES: list[Any] = [[1 << 62, 4, 0], [0, 1 << 64], [1 << 62, 0], [1 << 62, 1 << 62], [1 << 63], [0] * 32, [0] * 64]
VALUES: list[Any] = [[], [[]], [[], []], [1], [1e39], [1 << 70], ["NaN"], [None], [[1], 2]]
FIRST_S = 1.0
"""Seconds that the first call of an operator may take."""


def shapes(box: Box) -> Outcome:
    """Send tensors of all these shapes, types and values."""
    net = symbol(var("x"), ("relu", "y", {}, [0]))
    statuses: Counter[int] = Counter()
    for datatype in DATATYPES:
        for shape in SHAPES:
            for values in VALUES:
                entry = {"name": "x", "shape": shape, "datatype": datatype, "data": values}
                body = {"graph": net, "inputs": [entry]}
                statuses[box.live.json("POST", "/v1/forward", body, owner="bob").status] += 1
    counted = ", ".join(f"{times} answered {status}" for status, times in sorted(statuses.items()))
    return Outcome(not statuses[500], counted)


def first_calls(box: Box) -> Outcome:
    """Call operators that need a library which few operators do, each for the first time in this worker."""
    time.sleep(3)  # the server has rested for as long as a user takes to begin
    session = box.live.session("bob", code=False)
    x = np.ones((2, 2), np.float32)
    session.run({"do": "put", "id": 1, "tensor": "x"}, x=x)
    longest, slowest = 0.0, ""
    for number, (op, inputs) in enumerate(
        (
            ("_random_pdf_poisson", [1, 1]),
            ("_contrib_fft", [1]),
            ("_linalg_potrf", [1]),
            ("erfinv", [1]),
            ("gamma", [1]),
        )
    ):
        began = time.monotonic()
        session.run({"do": "invoke", "op": op, "inputs": inputs, "outputs": [10 + number]})
        seconds = time.monotonic() - began
        if seconds > longest:
            longest, slowest = seconds, op
    return Outcome(longest < FIRST_S, f"the slowest of the first calls, {slowest}: {longest:.2f} s")


ATTACKS = [
    Attack("shapes", "tensors of shapes and values that no array can have", shapes),
    Attack("first-calls", "operators that a worker runs for the first time", first_calls),
]
