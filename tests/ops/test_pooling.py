"""Pooling's two ways, tap by tap and by phases, against windows looked at one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from opbox_ops.nn.phases import Phases
from opbox_ops.nn.space import Space
from opbox_ops.nn.taps import Taps, route, spread

# kernel, stride, pad, data: windows that overlap with little surplus, with much, not at all, and reach over the edge.
GEOMETRIES = [
    ((3, 3), (2, 2), (1, 1), (12, 11)),
    ((3, 3), (1, 1), (1, 1), (7, 8)),
    ((3, 2), (2, 1), (0, 1), (9, 9)),
    ((5,), (2,), (2,), (23,)),
    ((2, 2), (2, 2), (0, 0), (8, 6)),
    ((2, 3), (3, 4), (1, 0), (10, 11)),
    ((6, 6), (1, 1), (0, 0), (7, 7)),
    ((2, 3, 2), (1, 2, 2), (1, 1, 0), (6, 9, 8)),
]


def _taps(kernel: Any, stride: Any, pad: Any, data: Any) -> Taps:
    out = tuple((n + 2 * q - k) // s + 1 for n, k, s, q in zip(data, kernel, stride, pad, strict=True))
    return Taps(data, out, kernel, stride, pad)


def _windows(taps: Taps) -> Any:
    """(output position, the positions of its window inside the data, in row-major order) of every window."""
    for at in itertools.product(*map(range, taps.out)):
        starts = [o * s - q for o, s, q in zip(at, taps.stride, taps.pad, strict=True)]
        ranges = [range(b, b + k) for b, k in zip(starts, taps.kernel, strict=True)]
        inside = [p for p in itertools.product(*ranges) if all(0 <= i < n for i, n in zip(p, taps.data, strict=True))]
        yield at, inside


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_both_ways_are_what_the_windows_say(geometry: Any) -> None:
    taps = _taps(*geometry)
    rng = np.random.default_rng(0)
    # Whole numbers, so that maxima come more than once and sums are exact.
    data = rng.integers(-3, 4, (2, 3, *taps.data)).astype("f")
    gout = rng.integers(-9, 10, (2, 3, *taps.out)).astype("f")
    gout[0, 0, ..., 0] = np.inf
    top, total = np.full(gout.shape, -9, "f"), np.zeros(gout.shape, "f")
    routed, spreaded = np.zeros(data.shape, "f"), np.zeros(data.shape, "f")
    for n, c in itertools.product(range(2), range(3)):
        for at, inside in _windows(taps):
            values = [data[(n, c, *p)] for p in inside]
            top[(n, c, *at)], total[(n, c, *at)] = max(values), sum(values)
            routed[(n, c, *inside[int(np.argmax(values))])] += gout[(n, c, *at)]
            for p in inside:
                spreaded[(n, c, *p)] += gout[(n, c, *at)]

    nbytes = Phases(np, taps, (2, 3)).needs("f")
    with np.errstate(invalid="ignore"):
        for function, margin, expected in ((np.maximum, -9, top), (np.add, 0, total)):
            phases = Phases(np, taps, (2, 3), Space(np.empty(nbytes, np.uint8)))
            reduced = phases.narrowed(phases.reduce(function, phases.cut(data, margin, "f")))
            np.testing.assert_array_equal(reduced, expected)
        more = Space(np.empty(1 << 20, np.uint8))
        gdata = np.full(data.shape, np.nan, "f")
        phases = Phases(np, taps, (2, 3), Space(np.empty(nbytes, np.uint8)))
        phases.join(phases.route(gout, data, top, "f"), gdata)
        np.testing.assert_array_equal(gdata, routed)
        gdata = np.full(data.shape, np.nan, "f")
        phases = Phases(np, taps, (2, 3), Space(np.empty(nbytes, np.uint8)))
        phases.join(phases.spread(phases.widened(gout)), gdata)
        np.testing.assert_array_equal(gdata, spreaded)
        gdata = np.zeros(data.shape, "f")
        route(np, taps, gout, data, top, gdata, more)
        np.testing.assert_array_equal(gdata, routed)
        gdata = np.zeros(data.shape, "f")
        spread(np, taps, gout, gdata, more)
        np.testing.assert_array_equal(gdata, spreaded)


class _NothingNew:
    """numpy, without memory to hand out."""

    def __getattr__(self, name: str) -> Any:
        assert name not in ("empty", "zeros", "ones", "full"), "an array was allocated beside the space"
        return getattr(np, name)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_space_asked_for_is_enough(geometry: Any) -> None:
    taps = _taps(*geometry)
    data, gout = np.zeros((2, 3, *taps.data), "d"), np.zeros((2, 3, *taps.out), "d")
    space = np.empty(Phases(np, taps, (2, 3)).needs("d"), np.uint8)
    for work in (
        lambda phases: phases.reduce(np.add, phases.cut(data, 0, "d")),
        lambda phases: phases.spread(phases.widened(gout)),
        lambda phases: phases.route(gout, data, gout, "d"),
    ):
        assert np.shares_memory(work(Phases(_NothingNew(), taps, (2, 3), Space(space))), space)


def test_phases_are_for_windows_that_overlap_with_little_surplus() -> None:
    assert [Phases.pay(_taps(*geometry)) for geometry in GEOMETRIES] == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]
