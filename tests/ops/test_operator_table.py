"""The operator table, row by row, on every device: values, shapes, types, gradients, requests, layouts, empty batches.

    pytest tests/ops/test_operator_table.py -k "Pooling"

Recorded values of MXNet 1.9.1 are compared where a row has them; `make record` (or, for one family,
`.venv-mxnet/bin/python -m tests.conformance.record pooling`) makes them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.infer import show_shape, unify
from opbox_protocol.errors import MXNetError, ShapeError
from tests.cases import all_cases, families
from tests.cases.case import Case
from tests.cases.values import arguments, is_float, stream
from tests.conformance.recording import FOLDER, Entry, digest, read, source_dtype
from tests.conftest import DEVICES, missing, of_each_operator

from .checks import check_inplace, check_requests, close, same, tolerance, unmodified
from .harness import Call, Run, infer_shapes, infer_types

CASES = all_cases()
FAMILY = {case.id: name for name, rows in families().items() for case in rows}


def _rows(*, grads: bool = False) -> list[Any]:
    """A parameter for each device, row and type."""
    return [
        pytest.param(device, case, dtype, id=f"{device}-{dtype}-{case.id}", marks=_marks(device))
        for device in DEVICES
        if missing(device) is None
        for case, dtype in (_first_rows(grads) if of_each_operator(device) else _all_rows(grads))
    ]


def _all_rows(grads: bool) -> list[tuple[Case, str]]:
    return [(case, dtype) for case in CASES for dtype in case.dtypes if not grads or (case.grad and is_float(dtype))]


def _first_rows(grads: bool) -> list[tuple[Case, str]]:
    """Of each operator the first."""
    rows: dict[str, tuple[Case, str]] = {}
    for case, dtype in _all_rows(grads):
        rows.setdefault(case.op, (case, dtype))
    return list(rows.values())


def _marks(device: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.gpu] if device == "gpu" else []


every_row = pytest.mark.parametrize(("device", "case", "dtype"), _rows())
every_gradient = pytest.mark.parametrize(("device", "case", "dtype"), _rows(grads=True))


@pytest.mark.gpu
def test_rows_on_the_gpu() -> None:
    """Counts the rows that only a machine with a GPU runs."""
    reason = missing("gpu")
    if reason is not None:
        pytest.skip(f"{sum(len(case.dtypes) for case in CASES)} rows of the operator table not run: {reason}")


@cache
def _recorded(family: str) -> dict[str, Entry]:
    return read(FOLDER / f"{family}.npz")


def recorded(case: Case, dtype: str) -> Entry | None:
    """MXNet's values for a row; None where there can be none."""
    source = source_dtype(case, dtype)
    if case.random or not case.oracle or source is None:
        return None
    family = FAMILY[case.id]
    entry = _recorded(family).get(f"{case.id}|{source}")
    if entry is None or entry.digest != digest(case, source):
        pytest.fail(f"not recorded: run .venv-mxnet/bin/python -m tests.conformance.record {family}")
    if entry.error is not None:
        pytest.fail(f"MXNet refuses this row: {entry.error}; set oracle=False with the reason in why", pytrace=False)
    return entry


# -- values -----------------------------------------------------------------------------------------------------------


@every_row
def test_forward(device: str, case: Case, dtype: str) -> None:
    run = Run(case, dtype, backend_for(device))
    outputs = [run.backend.get(out) for out in run.forward()]
    after = {v.name: run.backend.get(run.values[e]) for v, e in _variables(run)}
    for k, (name, before) in enumerate(run.arrays.items()):
        if k not in run.aux:
            np.testing.assert_array_equal(after[name], before, err_msg=f"input {name} was changed")
    if case.random:
        again = run.forward()
        for k, out in enumerate(outputs):
            same(run.calls[0], again[k], out, f"output {k} with the same seed")
        return
    reference = recorded(case, dtype)
    if reference is None:
        return
    near = tolerance(case, dtype)
    assert len(reference.outputs) == run.visible, f"MXNet shows {len(reference.outputs)} outputs"
    for k, expected in enumerate(reference.outputs):
        if source_dtype(case, dtype) == dtype:
            assert outputs[k].dtype == expected.dtype, f"output {k}: type {outputs[k].dtype}, MXNet {expected.dtype}"
        close(outputs[k], expected, near, f"output {k}")
    assert {run.variables[k].name for k in run.aux} == set(reference.aux), "auxiliary states"
    for name, expected in reference.aux.items():
        close(after[name], expected, near, f"auxiliary state {name}")


def _variables(run: Run) -> list[tuple[Any, Any]]:
    return [(variable, entry) for variable, entry in zip(run.variables, run.node.inputs, strict=True)]


@every_gradient
def test_gradient(device: str, case: Case, dtype: str) -> None:
    run = Run(case, dtype, backend_for(device))
    grads = {name: run.backend.get(array) for name, array in run.backward().items()}
    for name, value in run.arrays.items():
        if is_float(value.dtype):
            assert grads[name].shape == value.shape, f"gradient of {name}: shape {grads[name].shape}"
            assert grads[name].dtype == value.dtype, f"gradient of {name}: type {grads[name].dtype}"
    assert run.wanted(), "no gradient to compare: grad=False, or an input with grad"
    reference = recorded(case, dtype)
    if reference is None or case.random:
        return
    for name in run.wanted():
        close(grads[name], reference.grads[name], tolerance(case, dtype, gradient=True), f"gradient of {name}")
    for name, array in run.states_now().items():
        close(
            run.backend.get(array),
            reference.after[name],
            tolerance(case, dtype),
            f"auxiliary state {name} after backward",
        )


NUMERIC = [
    pytest.param(case, id=case.id)
    for case in CASES
    if case.grad and case.numeric and not case.random and "float64" in case.dtypes
]
STEP = 1e-5
DIRECTIONS = 4


@pytest.mark.parametrize("case", NUMERIC)
def test_gradient_is_the_derivative(case: Case) -> None:
    """Along random directions, in float64: (f(x + h d) - f(x - h d)) / 2h against grad . d; the error is about h^2."""
    run = Run(case, "float64", backend_for("cpu"))
    grads = run.backward()
    heads = run.heads()
    if any(is_float(dtype) and dtype != np.float64 for dtype in run.calls[0].dtypes[: run.visible]):
        pytest.skip("an output is rounded to another type: a difference quotient shows its steps")

    def value(moved: dict[str, Any]) -> float:
        outs = Run(case, "float64", run.backend, moved).forward()
        with np.errstate(all="ignore"):
            return sum(float((outs[k].astype(np.float64) * heads[k]).sum()) for k in range(run.visible))

    for name in run.wanted():
        if run.arrays[name].dtype != np.float64:
            continue
        for number in range(DIRECTIONS):
            direction = stream(case.id, name, "direction", number).choice([-1.0, 1.0], run.arrays[name].shape)
            ahead, behind = dict(run.arrays), dict(run.arrays)
            ahead[name] = run.arrays[name] + STEP * direction
            behind[name] = run.arrays[name] - STEP * direction
            slope = (value(ahead) - value(behind)) / (2 * STEP)
            expected = float((grads[name] * direction).sum())
            assert slope == pytest.approx(expected, rel=1e-4, abs=1e-6), (
                f"gradient of {name}: its rule says {expected}, the difference quotient {slope}; if this operator's "
                "gradient is not its derivative (a loss), set numeric=False with the reason in why"
            )


# -- shapes and types ----------------------------------------------------------------------------------------------


def _fits(inferred: Any, actual: Any, what: str) -> None:
    try:
        unify(inferred, tuple(actual))
    except ValueError:
        pytest.fail(f"{what}: inferred {show_shape(inferred)}, is {tuple(actual)}", pytrace=False)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_inference(case: Case) -> None:
    """Full inputs settle everything; what less settles never contradicts it."""
    run = Run(case, case.dtypes[0], backend_for("cpu"))
    run.forward()
    call = run.calls[0]
    ins = [tuple(array.shape) for array in call.inputs]
    outs = [tuple(shape) for shape in call.shapes]
    in_types = [array.dtype for array in call.inputs]
    every = [None] * len(ins)
    told_ins, told_outs = infer_shapes(run.node, ins, case.out_shapes or [None] * len(outs))
    assert [tuple(shape) for shape in told_ins] == ins
    assert [tuple(shape) for shape in told_outs] == outs
    assert infer_types(run.node, in_types, [None] * len(outs)) == (in_types, call.dtypes)
    if not case.settled:
        return
    trials = [(every, outs), (ins, outs), (every, [None] * len(outs))]
    for i, shape in enumerate(ins):
        trials.append(([None if k == i else s for k, s in enumerate(ins)], [None] * len(outs)))
        trials.append(([None if k == i else s for k, s in enumerate(ins)], outs))
        trials.append(([s if k == i else None for k, s in enumerate(ins)], [None] * len(outs)))
        for axis in range(len(shape)):
            open_shape = (*shape[:axis], -1, *shape[axis + 1 :])
            trials.append(([open_shape if k == i else s for k, s in enumerate(ins)], [None] * len(outs)))
            trials.append(([open_shape if k == i else s for k, s in enumerate(ins)], outs))
        trials.append(([(-1,) * len(shape) if k == i else None for k in range(len(ins))], [None] * len(outs)))
    for given_ins, given_outs in trials:
        what = f"from {', '.join(map(show_shape, given_ins))} -> {', '.join(map(show_shape, given_outs))}"
        try:
            found_ins, found_outs = infer_shapes(run.node, given_ins, given_outs)
        except MXNetError as error:
            pytest.fail(f"{what}: {error}", pytrace=False)
        for i, shape in enumerate(found_ins):
            if given_ins[i] is not None or run.variables[i].name not in case.assumed:
                _fits(shape, ins[i], f"{what}: input {run.variables[i].name}")
        for k, shape in enumerate(found_outs):
            _fits(shape, outs[k], f"{what}: output {k}")
    for i, variable in enumerate(run.variables):
        if variable.name in case.assumed:
            continue
        known_types = [None if k == i else dtype for k, dtype in enumerate(in_types)]
        for out_types in ([None] * len(outs), list(call.dtypes)):
            inferred = infer_types(run.node, known_types, out_types)
            assert all(f is None or f == t for f, t in zip(inferred[0], in_types, strict=True)), (
                f"from {known_types}: {inferred}"
            )
            assert all(f is None or f == t for f, t in zip(inferred[1], call.dtypes, strict=True)), (
                f"{known_types}: {inferred}"
            )


# -- memory --------------------------------------------------------------------------------------------------------


def _calls(run: Run) -> list[Call]:
    """The forward call, and the calls of its gradient when it has one that is compared."""
    run.forward()
    if run.case.grad and run.wanted():
        run.backward()
    return run.calls


@every_row
def test_requests(device: str, case: Case, dtype: str) -> None:
    for call in _calls(Run(case, dtype, backend_for(device))):
        check_requests(call)
        check_inplace(call)


@every_row
def test_layouts(device: str, case: Case, dtype: str) -> None:
    """Inputs that are every second column, and inputs in column order."""
    run = Run(case, dtype, backend_for(device))
    for call in _calls(run):
        for layout, arrange in (("strided", _strided), ("column order", _columns)):
            ins = [array if k in call.mutated else arrange(run.backend, array) for k, array in enumerate(call.fresh())]
            outs = call.empty()
            call.compute(ins, [1] * len(outs), outs)
            unmodified(call, ins, layout)
            for k, out in enumerate(outs):
                same(call, out, call.outputs[k], f"{layout} inputs: output {k}")


def _strided(backend: Any, array: Any) -> Any:
    if array.ndim == 0:
        return array
    wide = backend.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[...] = 0
    view = wide[..., ::2]
    view[...] = array
    return view


def _columns(backend: Any, array: Any) -> Any:
    return array if array.ndim == 0 else backend.xp.asfortranarray(array)  # which makes (1,) of ()


ZERO = [param for param in _rows() if param.values[1].zero_size and param.values[1].inputs]


@pytest.mark.parametrize(("device", "case", "dtype"), ZERO)
def test_an_empty_batch(device: str, case: Case, dtype: str) -> None:
    """The first dimension is 0: shapes hold, nothing is divided by, nothing is read that is not there."""
    from tests.cases.values import inputs

    shapes = _emptied(case)
    run = Run(case, dtype, backend_for(device), inputs(case, dtype, shapes))
    run.forward()
    if case.grad and run.wanted():
        for name, grad in run.backward().items():
            assert grad.shape == shapes[name]
    for call in run.calls:
        check_requests(call)


def _emptied(case: Case) -> dict[str, tuple[int, ...]]:
    """The row's shapes with its first input's first dimension 0, and the others' where they go with it."""
    names = list(case.inputs)
    whole = {name: tuple(arg.shape) for name, arg in arguments(case).items()}
    first = whole[names[0]]
    if not first:
        pytest.skip("a scalar has no first dimension")
    run = Run(case, case.dtypes[0], backend_for("cpu"))
    empty = (0, *first[1:])
    together = {n: (0, *s[1:]) if s and s[0] == first[0] else s for n, s in whole.items()}
    outs = [None] * run.op.num_outputs(run.params)
    out = infer_shapes(run.node, list(whole.values()), outs)[1][0]
    # Where shapes broadcast, the batch is what the output has for its first dimension.
    batch = {n: (0, *s[1:]) if s and s[0] == out[0] else s for n, s in whole.items()} if out else whole
    for trial in ({**whole, names[0]: empty}, together, batch):
        if all(min(shape, default=1) > 0 for shape in trial.values()):
            continue
        try:
            infer_shapes(run.node, list(trial.values()), outs)
        except ShapeError:
            continue
        return trial
    # The operator ties some of the others to it: let its rule say which.
    inferred = infer_shapes(run.node, [empty, *([None] * (len(names) - 1))], outs)[0]
    shapes = {
        n: f if f is not None and min(f, default=0) >= 0 else whole[n] for n, f in zip(names, inferred, strict=True)
    }
    try:
        infer_shapes(run.node, list(shapes.values()), outs)
    except ShapeError:
        pytest.fail("its shapes do not allow an empty first dimension: set zero_size=False", pytrace=False)
    return shapes


# -- completeness --------------------------------------------------------------------------------------------------


def _forward_operators() -> list[str]:
    return [name for name in _of_rows() if not registry.get(name).is_backward and not _internal(name)]


def _of_rows() -> list[str]:
    """All but the operators with subgraphs, which are no row's: tests/control_flow has networks of them."""
    return [name for name in registry.names() if not registry.get(name).get_attr("TSubgraphs")]


def _internal(name: str) -> bool:
    return name.startswith("_backward")


def test_every_operator_has_a_row() -> None:
    have = {registry.get(case.op).name for case in CASES}
    lacking = [name for name in _forward_operators() if name not in have]
    assert not lacking, f"{len(lacking)} operators have no row in tests/cases/: {', '.join(lacking)}"


def test_every_gradient_has_a_row() -> None:
    # What draws random numbers has a gradient of zeros, so that graphs can be differentiated around it.
    have = {
        registry.get(case.op).name for case in CASES if case.random or (case.grad and any(map(is_float, case.dtypes)))
    }
    lacking = [
        name
        for name in _forward_operators()
        if registry.get(name).get_attr("FGradient") is not None and name not in have
    ]
    assert not lacking, f"{len(lacking)} operators have a gradient and no row with grad=True: {', '.join(lacking)}"


def test_every_backward_operator_is_reached() -> None:
    reached: set[str] = set()
    for case in CASES:
        if case.grad:
            run = Run(case, case.dtypes[0], backend_for("cpu"))
            stack = [entry.node for entry in run.gradient_entries()[0] if entry is not None]
            while stack:
                node = stack.pop()
                if node.op is not None:
                    reached.add(node.op.name)
                    stack += [entry.node for entry in node.inputs if entry.node is not run.node]
    lacking = [name for name in _of_rows() if registry.get(name).is_backward and name not in reached]
    assert not lacking, f"no row's gradient uses {', '.join(lacking)}"


def test_names_of_rows_are_unique() -> None:
    seen: set[str] = set()
    twice = [case.id for case in CASES if case.id in seen or seen.add(case.id)]
    assert not twice, f"rows that say the same: {', '.join(twice)}"
