"""Images, augmenters and iterators have the values that MXNet recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opbox as mx

from .cases import CASES
from .record import ARRAYS, VALUES, separated

RECORDED = json.loads(VALUES.read_text())
CUBIC = "OpenCV 5's cubic kernel for uint8 rounds a half another way than 3.4.2's: one step"
WARP = "OpenCV 5 warps by finer places than 3.4.2, whose places are multiples of 1/32 of a pixel"
TOLERANCES = {
    **dict.fromkeys(("resize, inter_method 2", "enlarge, inter_method 2", "enlarge, inter_method 9"), 1),  # CUBIC
    **dict.fromkeys(("imresize 2 9x7", "imresize 2 40x33", "imresize 2 10x40"), 1),  # CUBIC
    **dict.fromkeys(("rotate by 30", "scale", "aspect ratio"), 4),  # WARP
}
FLOATS = 1e-3
"""Of float32 up to 255, and products of it: a unit in its last place is 1.5e-5; OpenCV's versions differ by 1e-3."""


@pytest.fixture(scope="module")
def arrays() -> np.lib.npyio.NpzFile:
    return np.load(ARRAYS)


@pytest.mark.parametrize("name", CASES)
def test_values_are_mxnets(name: str, arrays: np.lib.npyio.NpzFile) -> None:
    values, own = separated(name, CASES[name](mx))
    assert values == RECORDED[name]
    for key, value in own.items():
        expected = arrays[key]
        assert value.shape == expected.shape, key
        fractions = expected.dtype.kind == "f"
        limit = TOLERANCES.get(name, FLOATS if fractions or value.dtype.kind == "f" else 0)
        np.testing.assert_allclose(
            value.astype(np.float64), expected.astype(np.float64), atol=limit, rtol=1e-6, err_msg=key
        )
