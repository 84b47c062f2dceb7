"""The same symbol on several devices and in several element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import ndarray
from .comparing import assert_almost_equal, host
from .tolerances import get_tols

__all__ = ["check_consistency"]


def check_consistency(
    sym: Any,
    ctx_list: Sequence[Mapping[str, Any]],
    scale: float = 1.0,
    grad_req: Any = "write",
    arg_params: dict[str, Any] | None = None,
    aux_params: dict[str, Any] | None = None,
    rtol: Any = None,
    atol: Any = None,
    raise_on_err: bool = True,
    ground_truth: Mapping[str, Any] | None = None,
    equal_nan: bool = False,
    use_uniform: bool = False,
    rand_type: Any = np.float64,
) -> Mapping[str, Any]:
    """AssertionError unless a symbol computes the same everywhere.

    Args:
        sym: a symbol, or one for each entry of `ctx_list`, with the same arguments and outputs.
        ctx_list: keyword arguments of `simple_bind` for each run: `ctx`, shapes, `type_dict`.
        scale: standard deviation of the arguments, or nearly the bound of uniform ones.
        grad_req: "write", "add" or "null".
        arg_params, aux_params: values by name, in place of random ones, and of zeros.
        rtol, atol, equal_nan: as in `assert_almost_equal`; by default of the less precise of the two types.
        raise_on_err: whether to raise, or to print what differs.
        ground_truth: results by name of output and argument to compare with; by default those of the first of the most
            precise runs.
        use_uniform: uniform arguments in place of normal ones.
        rand_type: the element type that arguments are rounded to first.

    Returns:
        What was compared with: outputs and gradients by name.

    Example:
        >>> shapes = {"data": (2, 3)}
        >>> check_consistency(mx.sym.tanh(mx.sym.Variable("data")), [
        ...     {"ctx": mx.cpu(), **shapes, "type_dict": {"data": np.float64}},
        ...     {"ctx": mx.cpu(), **shapes, "type_dict": {"data": np.float32}}])
    """
    if len(ctx_list) < 2:
        raise ValueError(f"ctx_list: expected two runs or more, got {len(ctx_list)}")
    symbols = list(sym) if isinstance(sym, list | tuple) else [sym] * len(ctx_list)
    if len(symbols) != len(ctx_list):
        raise ValueError(f"sym: expected a symbol for each of {len(ctx_list)} runs, got {len(symbols)}")
    arguments, outputs = symbols[0].list_arguments(), symbols[0].list_outputs()
    for symbol in symbols:
        if symbol.list_arguments() != arguments or symbol.list_outputs() != outputs:
            raise ValueError("sym: expected symbols with the same arguments and outputs")
    runs = [one.simple_bind(grad_req=grad_req, **settings) for one, settings in zip(symbols, ctx_list, strict=True)]
    _fill(runs, arg_params or {}, aux_params or {}, scale, use_uniform, rand_type)
    precise = max(range(len(runs)), key=lambda i: (np.dtype(runs[i].outputs[0].dtype).itemsize, -i))

    results = [_outputs(run, outputs, False) for run in runs]
    _compare(results, ground_truth or results[precise], precise, rtol, atol, equal_nan, raise_on_err, "Predict")
    if grad_req == "null":
        return ground_truth or results[precise]
    for run in runs:
        for array in run.grad_arrays:
            if array is not None:
                array[:] = 0
    results = [_outputs(run, outputs, True) for run in runs]
    coarsest = [min((r[name].dtype for r in results), key=lambda t: np.dtype(t).itemsize) for name in outputs]
    heads = [results[0][name].astype(dtype) for name, dtype in zip(outputs, coarsest, strict=True)]
    for run, result in zip(runs, results, strict=True):
        run.backward([_like(head, out) for head, out in zip(heads, run.outputs, strict=True)])
        result |= {n: g.asnumpy() for n, g in zip(arguments, run.grad_arrays, strict=True) if g is not None}
    _compare(results, ground_truth or results[precise], precise, rtol, atol, equal_nan, raise_on_err, "Train")
    return ground_truth or results[precise]


def _fill(
    runs: Sequence[Any], args: dict[str, Any], aux: dict[str, Any], scale: float, uniform: bool, dtype: Any
) -> None:
    for name, array in sorted(runs[0].arg_dict.items()):
        if name not in args:
            drawn = (
                np.random.uniform(-0.92 * scale, 0.92 * scale, array.shape)
                if uniform
                else np.random.normal(scale=scale, size=array.shape)
            )
            args[name] = np.asarray(drawn).astype(dtype)
    for run in runs:
        for name, array in run.arg_dict.items():
            array[:] = args[name]
        for name, array in run.aux_dict.items():
            array[:] = aux.get(name, 0)


def _outputs(run: Any, names: Sequence[str], is_train: bool) -> dict[str, np.ndarray[Any, Any]]:
    run.forward(is_train=is_train)
    return {name: array.asnumpy() for name, array in zip(names, run.outputs, strict=True)}


def _like(values: np.ndarray[Any, Any], out: Any) -> Any:
    return ndarray.array(values, ctx=out.context, dtype=out.dtype)


def _compare(
    results: Sequence[Mapping[str, Any]],
    truth: Mapping[str, Any],
    precise: int,
    rtol: Any,
    atol: Any,
    equal_nan: bool,
    raise_on_err: bool,
    phase: str,
) -> None:
    for number, result in enumerate(results):
        if number == precise and truth is result:
            continue
        # A wide gradient (of a batch norm's gamma) of narrow data is only as good as the data.
        narrow = min((array.dtype for array in result.values()), key=lambda t: t.itemsize)
        for name, got in result.items():
            if name not in truth:
                continue
            want = host(truth[name])
            tolerances = get_tols(got.astype(narrow), want, rtol, atol)
            try:
                assert_almost_equal(got, want, *tolerances, (f"RUN_{number}_{name}", f"TRUTH_{name}"), equal_nan)
            except AssertionError as error:
                if raise_on_err:
                    raise AssertionError(f"{phase}: run {number}: {error}") from None
                print(f"{phase}: run {number}: {error}")
