"""The `opbox` command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import opbox as mx
from opbox.cli import main


@pytest.fixture
def file(tmp_path: Path) -> str:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="f")
    mx.sym.BatchNorm(net, name="bn").save(tmp_path / "net-symbol.json")
    return str(tmp_path / "net-symbol.json")


@pytest.mark.usefixtures("engine")
def test_infer_shape(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer-shape", file, "data=2,5"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for expected in ("f_weight (3, 5) argument", "bn_output (2, 3) output", "bn_moving_mean (3,) state"):
        assert expected in lines
    assert main(["infer-shape", file]) == 1
    shown = capsys.readouterr()
    assert "(3, ?)" in shown.out
    assert "leave some unknown" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data"], "expected name=1,3,224,224, got 'data'"),
        (["data=2,x"], "shape of data: expected whole numbers"),
        (["dta=2,3"], "keyword argument 'dta' not found: expected one of data, f_weight"),
        (["data=2,5", "f_weight=3,6"], "weight: expected (3, 5), got (3, 6)"),
    ],
)
@pytest.mark.usefixtures("embedded")
def test_what_infer_shape_refuses(
    arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["infer-shape", file, *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer-shape", "/nowhere.json"]) == 1
    assert "nowhere.json" in capsys.readouterr().err


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    assert "FullyConnected" in capsys.readouterr().out
    assert main(["ops", "flatten"]) == 0
    assert "Flatten (also flatten)" in capsys.readouterr().out
    assert main(["ops", "Convolutoin"]) == 1
    assert "did you mean Convolution" in capsys.readouterr().err


@pytest.mark.usefixtures("engine")
def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    mx.nd.ones((2,)).asnumpy()
    assert main(["status"]) == 0
    assert "1 session of yours" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough() -> None:
    command = f"{sys.executable} -m opbox.cli ops | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
