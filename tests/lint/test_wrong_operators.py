"""Operators with one classic mistake each: the check that is for it says so."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from opbox.lint import Report, lint

OPERATOR = """
import numpy as np
import opbox as mx

class Op(mx.operator.CustomOp):
    def __init__(self):
        self.mask = None

    def forward(self, is_train, req, in_data, out_data, aux):
{forward}

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
{backward}

@mx.operator.register("wrong")
class Prop(mx.operator.CustomOpProp):
{prop}
    def create_operator(self, ctx, shapes, dtypes):
        return Op()
"""
DOUBLE = "self.assign(out_data[0], req[0], in_data[0] * 2)"
DOUBLED = "self.assign(in_grad[0], req[0], out_grad[0] * 2)"
PRODUCT = "self.assign(out_data[0], req[0], in_data[0] * in_data[1])"
TWO_INPUTS = """
def list_arguments(self):
    return ["a", "b"]

def infer_shape(self, in_shape):
    return [in_shape[0], in_shape[0]], [in_shape[0]], []
"""
STATE = """
def list_auxiliary_states(self):
    return ["mean"]

def infer_shape(self, in_shape):
    return in_shape, [in_shape[0]], [(1,)]
"""
LOSS = """
def __init__(self):
    super().__init__(need_top_grad=False)

def list_arguments(self):
    return ["data", "label"]

def infer_shape(self, in_shape):
    return [in_shape[0], in_shape[0]], [in_shape[0]], []
"""


class Wrong(NamedTuple):
    """A mistake: the bodies of forward and backward, further methods of the Prop, the check and what it says."""

    check: str
    says: str
    forward: str = DOUBLE
    backward: str = DOUBLED
    prop: str = ""
    verdict: str = "fail"


WRONG = {
    "a factor of one in a hundred": Wrong(
        "gradient", "12 of 12 places", backward="self.assign(in_grad[0], req[0], out_grad[0] * 2.02)"
    ),
    "the gradient from above left out": Wrong(
        "gradient", "places", backward="self.assign(in_grad[0], req[0], mx.nd.ones_like(in_grad[0]) * 2)"
    ),
    "ties": Wrong(
        "gradient",
        "4 of 6 places",
        "self.assign(out_data[0], req[0], in_data[0].max(axis=1))",
        "self.assign(in_grad[0], req[0], (in_data[0] == in_data[0].max(axis=1, keepdims=True)) * "
        "out_grad[0].reshape((-1, 1)))",
        "lint_cases = [{'data': [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]]}]\n"
        "def infer_shape(self, s):\n    return s, [(s[0][0],)], []",
    ),
    "one gradient forgotten": Wrong(
        "gradient", "b: ", PRODUCT, "self.assign(in_grad[0], req[0], out_grad[0] * in_data[1])", TWO_INPUTS
    ),
    "the second output's gradient left out": Wrong(
        "gradient",
        "data: ",
        "self.assign(out_data[0], req[0], in_data[0] * 2)\nself.assign(out_data[1], req[1], in_data[0] * 3)",
        DOUBLED,
        "def list_outputs(self):\n    return ['p', 'q']",
    ),
    "the first input's request for both": Wrong(
        "requests",
        "gradient of b: backward does not keep to req ['null', 'write']",
        PRODUCT,
        "self.assign(in_grad[0], req[0], out_grad[0] * in_data[1])\n"
        "self.assign(in_grad[1], req[0], out_grad[0] * in_data[0])",
        TWO_INPUTS,
    ),
    "null not honoured": Wrong(
        "requests",
        "backward does not keep to req ['null']",
        backward="in_grad[0][:] = (in_grad[0] if req[0] == 'add' else 0) + out_grad[0] * 2",
    ),
    "always adds": Wrong("requests", "req 'add' does not add", backward="in_grad[0] += out_grad[0] * 2"),
    "a result bound to a name": Wrong("shapes", "12 of 12 elements unwritten", "y = out_data[0]\ny = in_data[0] * 2"),
    "a result put in the list": Wrong("shapes", "12 of 12 elements unwritten", "out_data[0] = in_data[0] * 2"),
    "unwritten at inference": Wrong("shapes", "12 of 12 elements unwritten", f"if is_train:\n    {DOUBLE}"),
    "gradients that gather": Wrong(
        "determinism",
        "a second backward gives another",
        backward="self.mask = out_grad[0] * 2 + (0 if self.mask is None else self.mask)\n"
        "self.assign(in_grad[0], req[0], self.mask)",
    ),
    "the first batch's mask": Wrong(
        "determinism",
        "output: depends on the runs before",
        "self.mask = in_data[0] > 0 if self.mask is None else self.mask\n"
        "self.assign(out_data[0], req[0], in_data[0] * self.mask)",
        "self.assign(in_grad[0], req[0], out_grad[0] * self.mask)",
    ),
    "numpy's random numbers": Wrong(
        "determinism",
        "two runs with the same inputs and seed differ",
        backward="self.assign(in_grad[0], req[0], out_grad[0] * (2 + 1e-5 * np.random.rand()))",
    ),
    "a state that nobody writes": Wrong("states", "training never changes op_mean", prop=STATE, verdict="warn"),
    "a state bound to a name": Wrong(
        "states",
        "training never changes op_mean",
        f"mean = aux[0]\nmean = mean * 0.9\n{DOUBLE}",
        DOUBLED,
        STATE,
        "warn",
    ),
    "a state of nan": Wrong(
        "states", "leaves nan in it", f"if is_train:\n    aux[0][:] = 0.0 / aux[0]\n{DOUBLE}", prop=STATE
    ),
    "a dependency not declared": Wrong(
        "runs",
        "in_data[0] (data) is not given to backward",
        "self.assign(out_data[0], req[0], in_data[0] ** 2)",
        "self.assign(in_grad[0], req[0], out_grad[0] * 2 * in_data[0])",
        "def declare_backward_dependency(self, out_grad, in_data, out_data):\n    return [out_grad[0]]",
    ),
    "a loss that reads the gradient from above": Wrong("runs", "out_grad[0] (of output) is not given", prop=LOSS),
    "the gradient from above written to": Wrong(
        "inputs kept", "writes to an input", backward=f"out_grad[0] *= 2\n{DOUBLED}"
    ),
    "another rank for one row": Wrong(
        "batch 1",
        "expected as many axes as for more rows, (3, 4), got (4,)",
        prop="def infer_shape(self, s):\n    return s, [s[0] if s[0][0] != 1 else s[0][1:]], []",
    ),
    "float16's gradient": Wrong(
        "types",
        "gradient of data: float16 differs from float32",
        backward="self.assign(in_grad[0], req[0], out_grad[0] * (3 if out_grad[0].dtype == np.float16 else 2))",
    ),
    "a loss that climbs": Wrong(
        "gradient",
        "-1 times the derivative of the squared error: it would climb",
        "self.assign(out_data[0], req[0], in_data[0])",
        "self.assign(in_grad[0], req[0], in_data[1] - in_data[0])",
        LOSS,
    ),
    "a loss of nothing known": Wrong(
        "gradient",
        'state it in lint_cases: "loss"',
        "self.assign(out_data[0], req[0], in_data[0])",
        "self.assign(in_grad[0], req[0], in_data[0] + 7 * in_data[1])",
        LOSS,
        "warn",
    ),
    "a loss that is not the stated one": Wrong(
        "gradient",
        "data: backward differs from differences",
        "self.assign(out_data[0], req[0], in_data[0])",
        "self.assign(in_grad[0], req[0], in_data[0] - in_data[1])",
        LOSS + "\nlint_cases = [{'data': (3, 4), 'loss': lambda data, label, output: ((output - label) ** 2).sum()}]",
    ),
}


def write(folder: Path, wrong: Wrong) -> Path:
    """The operator as a file."""
    bodies = {"forward": wrong.forward, "backward": wrong.backward}
    text = OPERATOR.format(
        **{name: textwrap.indent(body, " " * 8) for name, body in bodies.items()},
        prop=textwrap.indent(wrong.prop, " " * 4),
    )
    path = folder / "wrong.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("what", WRONG)
def test_is_told(what: str, tmp_path: Path) -> None:
    wrong = WRONG[what]
    report = lint(write(tmp_path, wrong))
    [case] = report.operators[0].cases
    verdict = case.checks[wrong.check]
    assert (verdict.verdict, wrong.says in verdict.detail) == (wrong.verdict, True), report.table()
    assert report.ok == (wrong.verdict == "warn")


def problem(report: Report) -> str:
    [operator] = report.operators
    assert not report.ok
    return operator.problem


def test_a_shape_that_only_infer_shape_takes(tmp_path: Path) -> None:
    # On one axis it would do: a usual shape that runs must not hide those that do not.
    wrong = Wrong("", "", prop="def infer_shape(self, s):\n    return s, [s[0][::-1]], []")
    assert "forward fails for a shape that infer_shape takes" in problem(lint(write(tmp_path, wrong)))


def test_what_another_shape_runs_after_is_a_warning(tmp_path: Path) -> None:
    wrong = Wrong("", "", "assert in_data[0].ndim > 2\n" + DOUBLE)
    report = lint(write(tmp_path, wrong))
    [case] = report.operators[0].cases
    assert case.inputs == {"data": (2, 3, 4)}
    assert case.checks["runs"].verdict == "warn"
    assert "infer_shape takes (3, 4): op (Custom, wrong.py:" in case.checks["runs"].detail
    assert report.table().endswith("none failed, 1 warning")


def test_a_failing_backward_is_told_once(tmp_path: Path) -> None:
    report = lint(write(tmp_path, WRONG["a dependency not declared"]))
    assert len(list(report.failures())) == 1
