"""The algebra of shapes and types with unknowns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opbox_ops.infer import (
    ShapeList,
    TypeList,
    all_same_shape,
    all_same_type,
    broadcast_shapes,
    canonical_axis,
    known,
    show_shape,
    size_of,
    unify,
)
from opbox_protocol.errors import DTypeError, ShapeError
from opbox_protocol.mxnet import numpy_dtype

dims = st.lists(st.integers(0, 4), max_size=4).map(tuple)
veiled = st.none() | st.lists(st.integers(-1, 3), max_size=4).map(tuple)


def veil(shape: tuple[int, ...], mask: list[bool]) -> tuple[int, ...]:
    return tuple(-1 if hidden else d for d, hidden in zip(shape, mask, strict=False)) + shape[len(mask) :]


@pytest.mark.parametrize(
    ("shape", "text", "is_known"),
    [
        (None, "unknown", False),
        ((), "()", True),
        ((3,), "(3,)", True),
        ((2, -1, 0), "(2, ?, 0)", False),
        ((-1,), "(?,)", False),
        ((0, 5), "(0, 5)", True),
    ],
)
def test_shapes_in_words(shape: Any, text: str, is_known: bool) -> None:
    assert show_shape(shape) == text
    assert known(shape) is is_known


def test_sizes_do_not_overflow() -> None:
    assert size_of((2**40, 2**40)) == 2**80
    assert size_of(()) == 1


@given(veiled, veiled)
def test_unify_knows_what_both_know(a: Any, b: Any) -> None:
    try:
        both = unify(a, b)
    except ValueError:
        assert a is not None
        assert b is not None
        assert len(a) != len(b) or any(x != y and x >= 0 and y >= 0 for x, y in zip(a, b, strict=True))
        return
    assert unify(b, a) == both
    assert unify(both, a) == unify(both, b) == both


@given(veiled, veiled, veiled)
def test_unify_in_any_order(a: Any, b: Any, c: Any) -> None:
    def joined(*shapes: Any) -> Any:
        try:
            joint = None
            for shape in shapes:
                joint = unify(joint, shape)
            return joint
        except ValueError:
            return "contradiction"

    assert joined(a, b, c) == joined(c, b, a) == joined(b, a, c)


@given(st.lists(dims, min_size=1, max_size=3))
def test_broadcasting_is_numpys(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="broadcast together"):
            broadcast_shapes(*shapes)
        return
    assert broadcast_shapes(*shapes) == expected


@given(dims, dims, st.lists(st.booleans(), max_size=4), st.lists(st.booleans(), max_size=4))
def test_broadcasting_unknowns_never_lies(a: Any, b: Any, hide_a: list[bool], hide_b: list[bool]) -> None:
    """What is found with some dimensions hidden agrees with what is found with all in sight."""
    try:
        whole = np.broadcast_shapes(a, b)
    except ValueError:
        assume(False)
    assert unify(broadcast_shapes(veil(a, hide_a), veil(b, hide_b)), whole) == whole
    assert broadcast_shapes(a, None) is None


@pytest.mark.parametrize(("axis", "ndim", "expected"), [(0, 3, 0), (-1, 3, 2), (-3, 3, 0), (2, 3, 2)])
def test_axes_counted_from_the_front(axis: int, ndim: int, expected: int) -> None:
    assert canonical_axis(axis, ndim) == expected


@pytest.mark.parametrize(("axis", "ndim"), [(3, 3), (-4, 3), (0, 0), (1, 0)])
def test_axes_that_are_not_there(axis: int, ndim: int) -> None:
    with pytest.raises(ShapeError, match=f"dim: expected between .* for {ndim} dimensions, got {axis}"):
        canonical_axis(axis, ndim, "dim")


def test_merging_tells_both_shapes_and_the_place() -> None:
    shapes = ShapeList([(2, -1), None], "input")
    assert shapes.merge(0, (-1, 3)) == (2, 3)
    assert shapes.merge(1, None) is None
    assert shapes == [(2, 3), None]
    with pytest.raises(ShapeError, match=r"expected \(4, 3\), got \(2, 3\)") as caught:
        shapes.merge(0, (4, 3))
    assert (caught.value.side, caught.value.index) == ("input", 0)
    assert shapes[0] == (2, 3)


def test_ranks() -> None:
    shapes = ShapeList([(2, 3), None], "input")
    assert shapes.rank(0, 2, 4) == (2, 3)
    assert shapes.rank(1, 7) is None
    with pytest.raises(ShapeError, match=r"expected 3 or 4 dimensions, got \(2, 3\)"):
        shapes.rank(0, 3, 4)


def test_types() -> None:
    types = TypeList([None, np.dtype("float32")], "output")
    assert types.merge(0, None) is None
    assert types.merge(0, "float16") == np.float16
    with pytest.raises(DTypeError, match="expected type float64, got float32") as caught:
        types.merge(1, np.float64)
    assert (caught.value.side, caught.value.index) == ("output", 1)
    assert types.only(1, "float32", "float64") == np.float32
    with pytest.raises(DTypeError, match="expected int32 or int64, got float32"):
        types.only(1, "int32", "int64")


def test_names_of_types() -> None:
    assert numpy_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert numpy_dtype(np.int8) == numpy_dtype("int8") == np.dtype(np.int8)


def test_elementwise_rules_spread_in_both_directions() -> None:
    ins, outs = ShapeList([None, (2, -1)], "input"), ShapeList([(-1, 3)], "output")
    all_same_shape(None, ins, outs)
    assert [*ins, *outs] == [(2, 3)] * 3
    ins_t, outs_t = TypeList([None, None], "input"), TypeList([np.dtype("int32")], "output")
    all_same_type(None, ins_t, outs_t)
    assert [*ins_t, *outs_t] == [np.dtype("int32")] * 3
