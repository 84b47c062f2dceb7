"""Every operator's page has an example that runs, with what it prints, and the shapes that really come out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs.make_operators_page import grouped
from docs.site import examples, operator_pages

NAMES = [op.name for ops in grouped().values() for op in ops]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_an_operator_runs(name: str) -> None:
    example = examples.example(name)
    assert example.output.strip()
    assert "Traceback" not in example.output
    # Seeds and values stand in the code: a second run prints the same, as it would for a reader.
    assert examples.run(example.code) == example.output


def test_pages_have_formulas_and_shapes() -> None:
    page = operator_pages.page("sigmoid")
    assert "out = 1 / (1 + exp(-data))" in page
    assert "gdata = gout * (out * (1 - out))" in page
    page = operator_pages.page("FullyConnected")
    assert "gdata = gout @ weight" in page
    assert "| num\\_hidden=5 | (3, 4), (5, 4), (5,) | (3, 5) |" in page
    assert "- `num_hidden`: an integer; required" in page


def test_every_operator_says_what_it_computes() -> None:
    for name in NAMES:
        formula = operator_pages.page(name).split("## Formula\n")[1].split("\n## ")[0]
        assert formula.strip(), name


def test_an_example_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(examples.example("Convolution").code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(2, 4, 5)")


def test_an_operator_without_rows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "rows", lambda name: [])
    with pytest.raises(LookupError, match="relu: expected a row of tests/cases"):
        examples.example("relu")
