"""Slices of suites: what a rule chooses, that rotation reaches every test, and that a run says what it left out."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests import skips, slices
from tests.slices import Alternating, Call, Covering, InTurn, OneIn, Turns

TYPES, SIZES, LAYOUTS = ("f2", "f4", "f8"), (1, 2, 3), ("rows", "columns", "strided")
CALLS = [
    Call(f"tests/x.py::test[{t}-{n}-{layout}]", {"dtype": t, "size": n, "layout": layout})
    for t, n, layout in product(TYPES, SIZES, LAYOUTS)
]
RUN = """
import pytest

@pytest.mark.parametrize("engine", ["embedded", "http"])
@pytest.mark.parametrize("program", range(3))
def test_a_program_gives_mxnets_answer(program: int, engine: str) -> None:
    pass
"""


def test_pairs_are_all_there_with_fewer_tests() -> None:
    chosen = Covering().choose(CALLS, 0)
    assert len(chosen) <= 12 < len(CALLS)
    for first, second in (("dtype", "size"), ("dtype", "layout"), ("size", "layout")):
        assert len({(call.parameters[first], call.parameters[second]) for call in chosen}) == 9


def test_functions_are_covered_apart_from_one_another() -> None:
    others = [Call(call.name.replace("test[", "test_of_another["), call.parameters) for call in CALLS]
    chosen = Covering().choose([*CALLS, *others], 0)
    assert len(chosen) == 2 * len(Covering().choose(CALLS, 0))


def test_tests_with_few_parameters_all_run() -> None:
    calls = [Call("tests/x.py::test_alone")]
    calls += [Call(f"tests/x.py::test_types[{t}]", {"dtype": t}) for t in TYPES]
    calls += [Call(f"tests/x.py::test_two[{t}-{n}]", {"dtype": t, "size": n}) for t, n in product(TYPES, SIZES)]
    assert Covering().choose(calls, 0) == calls


@pytest.mark.parametrize("rule", [OneIn(4), Turns(4), Alternating("layout"), Alternating("size")])
def test_rotation_reaches_every_test(rule: slices.Rule) -> None:
    by_slice = [rule.choose(CALLS, number) for number in range(4)]
    assert {call.name for chosen in by_slice for call in chosen} == {call.name for call in CALLS}
    assert all(len(chosen) <= len(CALLS) / 3 for chosen in by_slice)


def test_a_single_test_takes_its_turn() -> None:
    alone = [Call("tests/x.py::test_alone")]
    assert [bool(Turns(3).choose(alone, number)) for number in range(4)] == [True, False, False, True]


def test_what_another_rule_chooses_takes_its_turn() -> None:
    whole = Covering().choose(CALLS, 0)
    by_slice = [InTurn(3, Covering()).choose(CALLS, number) for number in range(3)]
    assert sorted(call.name for chosen in by_slice for call in chosen) == sorted(call.name for call in whole)
    assert all(len(chosen) <= len(whole) / 3 + 1 for chosen in by_slice)


def test_what_has_one_variant_always_runs() -> None:
    calls = [Call("tests/x.py::test_alone"), Call("tests/x.py::test_other"), *CALLS]
    chosen = Alternating("layout").choose(calls, 1)
    assert calls[:2] == chosen[:2]
    assert len({(call.parameters["dtype"], call.parameters["size"]) for call in chosen[2:]}) == 9


def test_every_suite_that_counts_skips_has_a_slice() -> None:
    assert skips.suites() <= set(slices.RULES)


def test_every_beginning_is_that_of_a_file() -> None:
    for rules in slices.RULES.values():
        for beginning in rules:
            file, _, function = beginning.partition("::")
            path = slices.ROOT / file
            assert path.exists(), beginning
            assert not function or f"def {function}" in path.read_text("utf-8"), beginning


def test_a_suite_that_has_no_slice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slices.VARIABLE, "unknown")
    with pytest.raises(KeyError, match=r"expected one of test, .*, got 'unknown'"):
        slices.suite()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_names_what_it_leaves_out(tmp_path: Path, workers: str) -> None:
    folder = tmp_path / "tests" / "compat"
    folder.mkdir(parents=True)
    (folder / "test_programs.py").write_text(RUN, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "tests.conftest", "--rootdir", str(tmp_path)]
    command += ["-c", str(tmp_path / "pytest.ini"), str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != skips.VARIABLE}
    environment |= {slices.VARIABLE: "test:1", "PYTHONPATH": str(slices.ROOT)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=slices.ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout
    assert "left out of the slice test:1; make test-all runs it" in run.stdout
    assert "test_programs.py: test_a_program_gives_mxnets_answer 3 of 6" in run.stdout
    assert "interrupts: 300 in place of 2000" in run.stdout
