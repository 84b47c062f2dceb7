"""What the documents promise: links lead somewhere, the code runs, the catalogue is the registry's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("program", ["make_operators_page.py", "make_onnx_tables.py", "make_compatibility_page.py"])
def test_pages_that_programs_write_are_current(program: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / program), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "first", "prints"),
    [
        ("README.md", 1, "accuracy"),
        ("docs/tutorials/training.md", 0, "accuracy"),
        ("docs/tutorials/pytorch.md", 0, "accuracy"),
        ("docs/writing-operators.md", 0, None),
        ("docs/custom-operators.md", 0, None),
        pytest.param("docs/rtc.md", 0, None, marks=pytest.mark.compiler),
        ("docs/lint.md", 0, None),
        ("docs/notebooks.md", 0, None),
        ("docs/onnx.md", 0, None),
        ("docs/tutorials/from-mxnet.md", 0, None),
    ],
)
def test_the_code_of_a_page_runs(page: str, first: int, prints: str | None, tmp_path: Path) -> None:
    code = "\n".join(blocks(ROOT / page, "python")[first:])
    assert code
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    if prints is not None:
        accuracy = re.findall(r"'accuracy', (?:np\.float64\()?([\d.]+)", done.stdout)
        assert accuracy, done.stdout
        # Digits and the separable example are easy; a network that has not learnt is near 0.1.
        assert float(accuracy[-1]) > 0.9


def test_two_workers_run_the_program_of_their_page(tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "docs" / "tutorials" / "several-workers.md", "python")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    command = [sys.executable, "-m", "opbox.cli", "dist", "run", "--workers", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    accuracy = re.findall(r"'accuracy', (?:np\.float64\()?([\d.]+)", done.stdout)
    assert len(accuracy) == 2, done.stdout
    assert min(map(float, accuracy)) > 0.9, "a network that has not learnt is near 0.1"
    assert len(list(tmp_path.glob("run-*.params"))) == 10


def test_the_list_of_pictures_has_them_all() -> None:
    listed = (ROOT / "docs" / "page.md").read_text(encoding="utf-8").partition("## All pictures")[2]
    there = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert set(re.findall(r"\(images/([^)]+)\)", listed)) == there


def test_the_image_runs_as_a_user_with_a_number() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert user.isdigit()
    assert int(user) > 0
