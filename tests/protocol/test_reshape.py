"""Reshape's codes: one reading for the operator and for NDArray.reshape."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import ShapeError
from opbox_protocol.reshape import reshape_target

# (shape, codes, reverse, target); what MXNet 1.9.1 answers.
CASES = [
    ((6,), (-4, 2, 3), False, (2, 3)),
    ((64,), (16, 4, -4), True, (16, 4)),
    ((2, 64, 3), (0, -1, 16, -4, 0), True, (2, 4, 16, 3)),
    ((2, 64, 3), (-2, 4, -1, -4, 0), True, (2, 4, 16, 3)),
    ((4, 6), (-4, 2, -1, -2), False, (2, 2, 6)),
    ((2, 3, 4), (-3, 0), True, (6, 4)),
    ((2, 3, 4), (0, -1), False, (2, 12)),
    ((2, 3, 4), (0, -1), True, (3, 8)),
    ((2, 3, 4), (-2,), False, (2, 3, 4)),
    ((10, 5, 4), (-1, 0), False, (40, 5)),
    ((10, 5, 4), (-1, 0), True, (50, 4)),
]


@pytest.mark.parametrize(("shape", "codes", "reverse", "target"), CASES)
def test_arrays_and_the_operator_agree(
    shape: tuple[int, ...], codes: tuple[int, ...], reverse: bool, target: tuple[int, ...]
) -> None:
    assert reshape_target(shape, codes, reverse)[0] == target
    x = mx.nd.array(np.arange(np.prod(shape)).reshape(shape))
    for y in (x.reshape(codes, reverse=reverse), mx.nd.reshape(x, shape=codes, reverse=reverse)):
        np.testing.assert_array_equal(y.asnumpy(), x.asnumpy().reshape(target))
    net = mx.sym.reshape(mx.sym.Variable("x"), shape=codes, reverse=reverse)
    assert net.infer_shape(x=shape)[1] == [target]


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ((-1, -1), "expected at most one -1"),
        ((0, 0, 0), r"expected at least 3 dimensions of data, got \(2, 6\)"),
        ((2, -4, 4, -1), "whose product is 6, got 4 and 1"),
        ((-5,), "expected sizes or codes from -4 to 0, got -5"),
        ((-4, 2), "expected two sizes after -4"),
        ((5, -1), r"expected a shape of 12 elements like \(2, 6\), got \(5, -1\)"),
    ],
)
def test_codes_that_do_not_fit(codes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        mx.nd.ones((2, 6)).reshape(codes)


def test_unknown_dimensions_stay_unknown() -> None:
    assert reshape_target((-1, 3, 4), (0, -3)) == ((-1, 12), {0: 0})
    assert reshape_target((2, -1), (-1,))[0] == (-1,)
