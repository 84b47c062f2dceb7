"""A row (of the table, or a generated one) in MXNet and here, values side by side."""

from __future__ import annotations

from typing import Any

from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from tests.cases.case import Case
from tests.ops.checks import close
from tests.ops.harness import Run

from .mxnet import Oracle, OracleDiedError, RefusedError

__all__ = ["compare"]

# Relative and absolute. In float64 both compute with 16 digits; MXNet keeps some scalar parameters in float32.
NEAR = {"float64": (1e-5, 1e-7)}


def compare(oracle: Oracle, case: Case, dtype: str, near: tuple[float, float], gradient: tuple[float, float]) -> str:
    """Compare outputs, gradients and auxiliary states.

    Returns:
        "same"; "refused" when MXNet does not take the row (and, for a generated one, "both refused" when we do not
        either).

    Raises:
        AssertionError: we differ, or refuse what MXNet takes.
    """
    refused: MXNetError | None = None
    run = Run(case, dtype, backend_for("cpu"))
    heads: dict[str, Any] = {}
    grads: dict[str, Any] = {}
    after_forward: dict[str, Any] = {}
    try:
        run.forward()
        after_forward = {name: array.copy() for name, array in run.states_now().items()}
        heads = {f"head:{k}": array for k, array in enumerate(run.heads()[: run.visible])}
        grads = run.backward() if run.wanted() else {}
    except MXNetError as error:
        refused = error
    try:
        _, theirs = oracle.ask(
            "run",
            {**{f"arg:{name}": array for name, array in run.arrays.items()}, **heads},
            op=case.op,
            attrs={key: str(value) for key, value in case.attrs.items()},
            names=list(run.arrays),
            wanted=run.wanted() if refused is None else [],
            is_train=case.is_train,
        )
    except (RefusedError, OracleDiedError):
        return "refused" if refused is None else "both refused"
    assert refused is None, f"MXNet takes it, we say: {refused}"
    outs = {f"out:{k}": run.calls[0].outputs[k] for k in range(run.visible)}
    assert outs.keys() == {key for key in theirs if key.startswith("out:")}
    for key, got in outs.items():
        assert got.dtype == theirs[key].dtype, f"{key}: type {got.dtype}, MXNet {theirs[key].dtype}"
        close(got, theirs[key], near, key)
    for name in run.wanted():
        close(grads[name], theirs[f"grad:{name}"], gradient, f"gradient of {name}")
    states = {f"aux:{name}": array for name, array in after_forward.items()}
    if run.wanted():
        states.update({f"after:{name}": array for name, array in run.states_now().items()})
    assert states.keys() == {key for key in theirs if key.startswith(("aux:", "after:"))}
    for key, got in states.items():
        close(got, theirs[key], near, key)
    return "same"
