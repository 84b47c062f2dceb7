"""`opbox lint`: right operators pass, and each check catches what it is there for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opbox.lint import Report, lint, main
from opbox_ops import registry

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

REGISTRY = '''
"""scaled(x) = scale * x, with a gradient that is {what}."""
from opbox_ops import Field, Params, backward_node, register, register_backward
from opbox_ops.params import Float

lint_cases = {{"{name}": [{{"data": (2, 3), "params": {{"scale": 3.0}}}}]}}

class ScaledParams(Params):
    scale: Float = Field(1.0, description="Factor.")

op = register("{name}", ScaledParams, inputs=("data",))
backward = register_backward("_backward_{name}", ScaledParams, outputs=("data",))

@op.infer_shape
def _(p, ins, outs):
    outs.merge(0, ins.merge(0, outs[0]))

@op.gradient
def _(node, ograds):
    return backward_node("_backward_{name}", node, [ograds[0]])

@op.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = p.scale * inputs[0]

@backward.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = {factor} * inputs[0]
'''


@pytest.fixture(scope="module")
def report() -> Report:
    return lint(HERE / "operators.py")


@pytest.fixture(scope="module")
def right() -> Report:
    return lint(HERE / "right_operators.py")


def failed(report: Report, name: str) -> dict[str, str]:
    """Checks that failed, with their details."""
    [operator] = [row for row in report.operators if row.name == name]
    return {
        check: verdict.detail
        for case in operator.cases
        for check, verdict in case.checks.items()
        if verdict.verdict == "fail"
    }


@pytest.mark.parametrize("name", ["right", "right_state", "Tile", "instance"])
def test_right_operators_pass(report: Report, name: str) -> None:
    [operator] = [row for row in report.operators if row.name == name] or [None]
    if name == "Tile":
        assert operator is None  # its instance is checked
        return
    assert operator is not None
    assert operator.cases
    assert not operator.problem
    assert failed(report, name) == {}


@pytest.mark.parametrize("text", ["def f(:\n", "from opbox_ops import register\n\nx = (\n"])
def test_a_file_that_is_no_python_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    assert main([str(path)]) == 2
    line = text.count("\n")
    assert re.fullmatch(rf"opbox lint: .* \(wrong\.py, line {line}\)\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        ("gradient", "gradient", "data: backward differs from differences in 12 of 12 places"),
        ("requests", "requests", "forward does not keep to req 'null'"),
        ("shapes", "shapes", "forward leaves 12 of 12 elements unwritten: write in place"),
        ("requests of gradients", "requests", "gradient of data: 12 of 12 elements are not written"),
        ("determinism", "determinism", "two runs with the same inputs and seed differ"),
        ("inputs kept", "inputs kept", "it writes to an input"),
        ("batch 1", "batch 1", "a batch of one is too small"),
        ("batch 0", "batch 0", "ZeroDivisionError"),
        ("states", "states", "a run that does not train changes it"),
        ("types", "types", "float16 differs from float32"),
        ("ReadsMemory", "non-contiguous", "other values for arrays in column order"),
    ],
)
def test_each_check_catches(report: Report, name: str, check: str, says: str) -> None:
    assert says in failed(report, name)[check]


def test_an_operator_that_cannot_be_run_is_a_failure(report: Report) -> None:
    problems = {row.name: row.problem for row in report.operators if row.problem}
    assert set(problems) == {"Nameless", "Choosy"}
    assert "cannot be made without parameters" in problems["Nameless"]
    assert "none of the usual shapes; add lint_cases" in problems["Choosy"]


@pytest.fixture
def published_reorg(tmp_path: Path) -> Path:
    """The operator of the published program, without the training: its backward kernel takes another order."""
    text = (ROOT / "tests" / "examples" / "seeds" / "reorg.py").read_text()
    operator, training, _ = text.partition("\nmnist = ")
    assert training
    path = tmp_path / "published_reorg.py"
    path.write_text(f'{operator}\nNDArrayReorg.lint_cases = [{{"data": (2, 3, 4, 4)}}]\n')
    return path


@pytest.mark.compiler
def test_the_published_reorg_kernel_is_caught_by_its_gradient_alone(published_reorg: Path) -> None:
    report = lint(published_reorg)
    caught = failed(report, "NDArrayReorg")
    assert "data: backward differs from differences" in caught["gradient"]
    assert not report.ok


@pytest.mark.compiler
def test_the_shipped_reorg_is_right() -> None:
    report = lint(ROOT / "examples" / "reorg_op.py")
    assert report.ok, report.table()
    [operator] = report.operators
    assert [case.checks["gradient"].verdict for case in operator.cases] == ["pass", "pass"]


@pytest.fixture
def registry_file(tmp_path: Path) -> Iterator[Any]:
    names = []

    def write(name: str, what: str, factor: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(REGISTRY.format(name=name, what=what, factor=factor))
        names.append(name)
        return path

    yield write
    for name in names:
        for alias in (name, f"_backward_{name}"):
            if registry.find(alias) is not None:
                registry.unregister(alias)


def test_registry_operators(registry_file: Any) -> None:
    right = lint(registry_file("lint_scaled", "right", "p.scale"))
    assert right.ok, right.table()
    assert right.operators[0].cases[0].params == {"scale": 3.0}
    wrong = lint(registry_file("lint_scaled_wrongly", "wrong", "1"))
    assert "data: backward differs" in failed(wrong, "lint_scaled_wrongly")["gradient"]


NO_GRADIENT = """
from opbox_ops import register
op = register("{name}")

@op.infer_shape
def _(p, ins, outs):
    outs.merge(0, ins.merge(0, outs[0]))

@op.compute()
def _(p, ctx, inputs, outputs):
    {first}
    outputs[0][...] = ctx.xp.sign(inputs[0])
"""


@pytest.mark.parametrize(
    ("name", "first", "wrong"), [("lint_sign", "pass", {}), ("lint_writes", "inputs[0][...] = 1", {"inputs kept"})]
)
def test_registry_operators_without_a_gradient(name: str, first: str, wrong: Any, registry_file: Any) -> None:
    path = registry_file(name, "none", "1")
    path.write_text(NO_GRADIENT.format(name=name, first=first))
    report = lint(path)
    assert set(failed(report, name)) == set(wrong), report.table()
    [case] = report.operators[0].cases
    assert case.checks["gradient"].detail == "it has no backward"


def test_a_loss_of_the_registry(registry_file: Any) -> None:
    path = registry_file("lint_loss", "that of its sum", "p.scale")
    text = (
        path.read_text()
        .replace("[ograds[0]]", "node.inputs[:1]")
        .replace("p.scale * inputs[0]\n", "inputs[0] ** 2\n", 1)
    )
    path.write_text(text.replace("p.scale * inputs[0]", "2 * inputs[0]"))
    report = lint(path)
    assert report.ok, report.table()
    assert "the derivative of the sum of its output" in report.operators[0].cases[0].checks["gradient"].detail


@pytest.mark.parametrize(
    "name",
    [
        "of integers",
        "of one integer input",
        "without backward",
        "random",
        "backward in float32 only",
        "steep",
        "kinks next to a value",
        "keeps a count on purpose",
        "no inputs",
        "a loss, averaged",
    ],
)
def test_right_operators_that_look_wrong(right: Report, name: str) -> None:
    [operator] = [row for row in right.operators if row.name == name]
    assert not operator.problem
    verdicts = {check: verdict for case in operator.cases for check, verdict in case.checks.items()}
    assert not [verdict for verdict in verdicts.values() if verdict.verdict in ("fail", "warn")], right.table()


def test_what_a_right_operator_is_told(right: Report) -> None:
    checks = {row.name: row.cases[0].checks for row in right.operators}
    assert checks["of one integer input"]["gradient"].detail == "table in float64"
    assert checks["backward in float32 only"]["gradient"].detail == "data in float32"
    assert checks["backward in float32 only"]["types"].detail.startswith(
        "float32, float64 (forward) (to float32's precision)"
    )
    assert "0.25 times the derivative of the squared error" in checks["a loss, averaged"]["gradient"].detail
    assert checks["without backward"]["gradient"].detail == "it has no backward"


def test_imported_operators_are_checked_where_they_are_written() -> None:
    report = lint(ROOT / "examples" / "numpy_softmax.py")
    assert [row.name for row in report.operators] == ["NumpySoftmax"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(HERE / "operators.py")
    assert main([file, "--only", "right"]) == 0
    printed = capsys.readouterr().out
    assert "right (CustomOp)" in printed
    assert printed.rstrip().endswith("1 operator, 22 checks, none failed")
    assert main([file, "--only", "right", "--only", "gradient", "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in read["operators"]] == ["right", "gradient"]
    assert read["ok"] is False
    assert read["operators"][1]["cases"][0]["checks"]["gradient"]["verdict"] == "fail"
    assert main([file, "--only", "nothing"]) == 2
    assert "expected one of right, right_state" in capsys.readouterr().err
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    assert main([str(empty)]) == 2
    assert "no operators" in capsys.readouterr().err
    empty.write_text("raise RuntimeError('on purpose')\n")
    assert main([str(empty)]) == 2
    assert "loading empty.py failed: RuntimeError: on purpose" in capsys.readouterr().err
    assert main([str(tmp_path / "none.py")]) == 2
    capsys.readouterr()
    for words in ([], [file, "--onyl", "right"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("opbox lint: ")
        assert said.endswith(": see opbox lint --help\n")
        assert said.count("\n") == 1


@pytest.mark.compiler
def test_the_program(published_reorg: Path) -> None:
    command = [sys.executable, "-m", "opbox.cli", "lint", str(published_reorg)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "OPBOX_URL": ""}
    )
    assert done.returncode == 1, done.stderr
    assert "gradient        FAIL  data: backward differs from differences" in done.stdout


def test_a_file_of_a_package_may_import_its_neighbours(tmp_path: Path) -> None:
    package = tmp_path / "lint_package" / "operators"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "factor.py").write_text("FACTOR = 2\n")
    text = (HERE / "operators.py").read_text().split('@mx.operator.register("right")')[0]
    text = text.replace("import opbox as mx\n", "import opbox as mx\n\nfrom ..factor import FACTOR\n").replace(
        "* 2", "* FACTOR"
    )
    (package / "scale.py").write_text(
        text + '\n@mx.operator.register("of a package")\nclass PackageProp(Prop):\n    pass\n'
    )
    report = lint(package / "scale.py")
    assert [row.name for row in report.operators] == ["of a package"]
    assert report.ok, report.table()
