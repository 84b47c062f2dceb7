"""Compares arrays, and reports where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tolerances import get_etol, get_tols

__all__ = [
    "almost_equal",
    "assert_allclose",
    "assert_almost_equal",
    "assert_almost_equal_ignore_nan",
    "assert_almost_equal_with_err",
    "assert_exception",
    "checkShapes",
    "compare_ndarray_tuple",
    "compare_optimizer",
    "locationError",
    "same",
    "same_array",
    "same_symbol_structure",
]


def host(array: Any) -> np.ndarray[Any, Any]:
    """An array of any kind as numpy's."""
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def same(a: Any, b: Any) -> bool:
    """Return whether two arrays are equal to the last bit."""
    return np.array_equal(host(a), host(b))


def same_array(array1: Any, array2: Any) -> bool:
    """Return whether two NDArrays share their memory: what is added to one shows in the other."""
    array1[:] += 1
    together = same(array1, array2)
    array1[:] -= 1
    return together and same(array1, array2)


def almost_equal(
    a: Any,
    b: Any,
    rtol: Any = None,
    atol: Any = None,
    equal_nan: bool = False,
    use_broadcast: bool = True,
) -> bool:
    """Return whether |a - b| <= atol + rtol |b| everywhere; tolerances as in `assert_almost_equal`."""
    left, right = host(a), host(b)
    if not use_broadcast and left.shape != right.shape:
        return False
    rtol, atol = get_tols(left, right, rtol, atol)
    return bool(np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan))


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: Any = None,
    atol: Any = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    use_broadcast: bool = True,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Raise AssertionError, with the places that differ most, unless |a - b| <= atol + rtol |b| everywhere.

    Args:
        a, b: arrays of any kind.
        rtol, atol: tolerances, as numbers or by element type; where they say nothing, the looser of the two types'
            defaults.
        names: what the message calls them.
        equal_nan: whether nan equals nan.
        use_broadcast: whether shapes may differ as far as broadcasting goes.
        mismatches: how many places are printed; the second number is taken and ignored.
    """
    left, right = host(a), host(b)
    if not use_broadcast and left.shape != right.shape:
        raise AssertionError(f"shapes: expected {right.shape} as of {names[1]}, got {left.shape} as of {names[0]}")
    rtol, atol = get_tols(left, right, rtol, atol)
    if not np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan):
        raise AssertionError(difference(left, right, rtol, atol, names, equal_nan, mismatches[0]))


def difference(
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    rtol: float,
    atol: float,
    names: tuple[str, str],
    equal_nan: bool = False,
    places: int = 10,
) -> str:
    """Describe two arrays' difference: the number of elements that differ, and the places that differ most."""
    left, right = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
    wide_left, wide_right = left.astype(np.float64), right.astype(np.float64)
    excess = np.abs(wide_left - wide_right) / (atol + rtol * np.abs(wide_right) + 1e-300)
    unequal = ~np.isclose(wide_left, wide_right, rtol=rtol, atol=atol, equal_nan=equal_nan)
    excess = np.where(unequal, np.nan_to_num(excess, nan=np.inf), 0.0)
    worst = np.argsort(excess, axis=None)[::-1][: min(places, int(unequal.sum()))]
    lines = [
        f"  at {tuple(int(i) for i in np.unravel_index(int(flat), left.shape))}: "
        f"{names[0]} = {left.reshape(-1)[flat]:.8g}, {names[1]} = {right.reshape(-1)[flat]:.8g}"
        for flat in worst
    ]
    return (
        f"{names[0]} and {names[1]} differ in {int(unequal.sum())} of {left.size} elements "
        f"(rtol {rtol:g}, atol {atol:g}):\n" + "\n".join(lines)
    )


def assert_allclose(a: Any, b: Any, rtol: float = 1e-07, atol: float = 0, equal_nan: bool = True) -> None:
    """`assert_almost_equal` with numpy's tolerances."""
    assert_almost_equal(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def assert_almost_equal_ignore_nan(
    a: Any, b: Any, rtol: Any = None, atol: Any = None, names: tuple[str, str] = ("a", "b")
) -> None:
    """`assert_almost_equal` where neither is nan."""
    left, right = np.copy(host(a)), np.copy(host(b))
    either = np.isnan(left) | np.isnan(right)
    left[either] = right[either] = 0
    assert_almost_equal(left, right, rtol, atol, names)


def assert_almost_equal_with_err(
    a: Any,
    b: Any,
    rtol: Any = None,
    atol: Any = None,
    etol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """`assert_almost_equal`, but the share `etol` of all elements may differ."""
    share = get_etol(etol)
    if share <= 0:
        assert_almost_equal(a, b, rtol, atol, names, equal_nan, mismatches=mismatches)
        return
    left, right = host(a), host(b)
    rtol, atol = get_tols(left, right, rtol, atol)
    close = np.isclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if close.size and 1 - np.count_nonzero(close) / close.size > share:
        raise AssertionError(difference(left, right, rtol, atol, names, equal_nan, mismatches[0]))


def assert_exception(f: Any, exception_type: type[BaseException], *args: Any, **kwargs: Any) -> None:
    """AssertionError unless f(*args, **kwargs) raises `exception_type`."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"expected {exception_type.__name__}, got no error")


def compare_ndarray_tuple(t1: Any, t2: Any, rtol: Any = None, atol: Any = None) -> None:
    """`assert_almost_equal` of arrays, or of tuples of them, to any depth; None equals None."""
    if t1 is None or t2 is None:
        return
    if isinstance(t1, tuple):
        for one, other in zip(t1, t2, strict=True):
            compare_ndarray_tuple(one, other, rtol, atol)
    else:
        assert_almost_equal(t1, t2, rtol=rtol, atol=atol)


def compare_optimizer(
    opt1: Any,
    opt2: Any,
    shape: Any,
    dtype: Any,
    w_stype: str = "default",
    g_stype: str = "default",
    rtol: float = 1e-4,
    atol: float = 1e-5,
    compare_states: bool = True,
    ntensors: int = 1,
) -> None:
    """Take one step of two optimizers from equal weights, and compare weights and states.

    Args:
        opt1, opt2: the optimizers.
        shape: of the weight; a list of shapes for several weights.
        dtype: element type of weights and gradients.
        w_stype, g_stype: "default", as opbox's arrays are dense.
        rtol, atol: tolerances, as in `assert_almost_equal`.
        compare_states: compare the optimizers' states, too.
        ntensors: the number of weights.

    Raises:
        AssertionError: they differ.
        ValueError: another storage type.

    Example:
        >>> mx.test_utils.compare_optimizer(mx.optimizer.SGD(), mx.optimizer.SGD(), (3, 4), "float32")
    """
    from ..ndarray import random

    for name, stype in (("w_stype", w_stype), ("g_stype", g_stype)):
        if stype != "default":
            raise ValueError(f"compare_optimizer: {name}: expected 'default', as arrays are dense, got {stype!r}")
    shapes = shape if isinstance(shape, list) else [shape]
    if len(shapes) != ntensors:
        raise AssertionError(f"compare_optimizer: ntensors: expected {len(shapes)}, as many as shapes, got {ntensors}")
    for index, one in enumerate(shapes):
        weight1, gradient = random.uniform(shape=one, dtype=dtype), random.uniform(shape=one, dtype=dtype)
        weight2 = weight1.copy()
        state1 = opt1.create_state_multi_precision(index, weight1)
        state2 = opt2.create_state_multi_precision(index, weight2)
        if compare_states:
            compare_ndarray_tuple(state1, state2)
        opt1.update_multi_precision(index, weight1, gradient.copy(), state1)
        opt2.update_multi_precision(index, weight2, gradient.copy(), state2)
        if compare_states:
            compare_ndarray_tuple(state1, state2, rtol, atol)
        assert_almost_equal(weight1, weight2, rtol=rtol, atol=atol)


def checkShapes(a: Any, b: Any) -> None:
    """Compare the shapes of two arrays.

    Raises:
        AssertionError: they differ.
    """
    if a.shape != b.shape:
        raise AssertionError(f"expected arrays of one shape, got a.shape = {a.shape} and b.shape = {b.shape}")


def locationError(a: Any, b: Any, index: Any, names: Any, maxError: bool = False) -> str:
    """Say in words where two arrays differ, and their values there.

    Args:
        a, b: the arrays.
        index: the place.
        names: the arrays' names.
        maxError: whether the error is the largest.
    """
    kind = "maximum error" if maxError else "error"
    return f"Location of {kind}: {index}, {names[0]}={a[index]:.8f}, {names[1]}={b[index]:.8f}"


def same_symbol_structure(sym1: Any, sym2: Any) -> bool:
    """Return whether two symbols are the same graph of the same operators, whatever their names."""
    one, other = ([_node(node) for node in _json(symbol)["nodes"]] for symbol in (sym1, sym2))
    return one == other


def _json(symbol: Any) -> Any:
    import json

    return json.loads(symbol.tojson())


def _node(node: Any) -> Any:
    return node["op"], [entry[:2] for entry in node["inputs"]]
