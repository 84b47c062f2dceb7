"""What is generated from the registry is current, and says what the operators say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import opbox as mx
from opbox import _schema
from opbox_ops import registry
from opbox_service import schema


def test_generated_files_are_current() -> None:
    # In a process of its own: tests before this one may have registered operators.
    script = (
        "from opbox_service import schema\n"
        "print(*[path.name for path, text in schema.files().items() if path.read_text(encoding='utf-8') != text])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    stale = done.stdout.split()
    assert not stale, "run python -m opbox_service.schema"


@pytest.mark.parametrize("name", [op["name"] for op in schema.catalogue()["operators"]])
def test_inputs_and_outputs_are_those_of_the_registry(name: str) -> None:
    op, ours = registry.get(name), _schema.get(name)
    attrs = _smallest(name)
    params = op.parse(attrs)
    assert ours.input_names(attrs) == op.input_names(params)
    assert sorted(ours.aux_indices(attrs)) == op.aux_indices(params)
    assert ours.visible_outputs(attrs) == op.num_visible_outputs(params)
    assert len(ours.output_names(attrs)) == op.num_outputs(params)


def test_bounds_of_parameters_are_json_schemas_own() -> None:
    """What the client reads as bounds: pydantic writes its own words for those that stand on a converted type."""
    unread = {"ge", "gt", "le", "lt", "multiple_of"}
    for op in schema.catalogue()["operators"]:
        for name, parameter in op["params"].get("properties", {}).items():
            kinds = [parameter, *parameter.get("anyOf", ())]
            assert not unread & {key for kind in kinds for key in kind}, (op["name"], name)


def _smallest(name: str) -> dict[str, str]:
    """A value for every parameter that has no default."""
    op = _schema.get(name)
    values = {"integer": "2", "number": "0.5", "boolean": "True", "array": "(1, 1)", "string": "x"}
    smallest = {}
    for key in op.required:
        param = op.params[key]
        kind = next((choice for choice in param.get("anyOf", [param]) if choice.get("type") != "null"), param)
        choices = kind.get("enum", [kind["const"]] if "const" in kind else [])
        smallest[key] = str(choices[0]) if choices else values[kind.get("type", "array")]
    if op.count is not None:
        smallest[op.count] = "3"
    return smallest


def test_functions_are_there_under_every_name() -> None:
    assert mx.sym.Flatten is not None
    for namespace in (mx.sym, mx.nd):
        for name in ("flatten", "Flatten", "Concat", "concat", "elemwise_add", "sgd_update"):
            assert callable(getattr(namespace, name)), name
        assert callable(namespace._internal._plus_scalar)
        assert "num_hidden" in namespace.FullyConnected.__signature__.parameters


SIGNATURES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("recorded").joinpath("signatures.json").read_text(encoding="utf-8")
)
OWN_ARGUMENTS = {
    *("_linspace", "BatchNorm_v1", "IdentityAttachKLSparseReg"),
    *("_npi_norm", "_npi_gamma", "_npi_bernoulli"),
}
"""Operators whose arguments are not MXNet's, on purpose: mx.nd.linspace does what its arguments say, and of the two of
MXNet's first interface the auxiliary states are among the inputs, as they are of every other operator. MXNet does not
tell the parameters of _npi_norm, and opbox draws _npi_gamma and _npi_bernoulli of numbers, which are no inputs."""


@pytest.mark.parametrize(
    "name", [op.name for op in _schema.operators() if op.name in SIGNATURES and op.name not in OWN_ARGUMENTS]
)
def test_arguments_come_in_mxnets_order(name: str) -> None:
    op = _schema.get(name)
    ours = [*op.tensors, *op.params]
    theirs = [argument for argument in SIGNATURES[name] if argument != "kwargs"]
    if op.count is None:
        assert ours == theirs


@pytest.mark.parametrize("op", _schema.operators(), ids=lambda op: op.name)
def test_names_are_mxnets(op: _schema.Operator) -> None:
    assert [name for name in (op.name, *op.aliases) if name not in SIGNATURES] == []


def test_an_operator_that_comes_anew_loses_the_names_that_it_has_no_more() -> None:
    entry = next(op for op in schema.catalogue()["operators"] if op["name"] == "ceil")
    try:
        _schema.extend([{**entry, "aliases": ["rounded_up"]}])
        assert _schema.get("rounded_up").name == "ceil"
        _schema.extend([entry])
        with pytest.raises(mx.MXNetError, match="rounded_up"):
            _schema.get("rounded_up")
    finally:
        _schema.extend([entry])
