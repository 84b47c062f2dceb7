"""The runner of make gpu-check's stages, with stages of its own; the real list is looked at too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .__main__ import ROOT, stages
from .machine import description
from .stages import Stage, read, run


def python(program: str, *arguments: str) -> list[str]:
    # A brace is a place in a command.
    return [sys.executable, "-c", program, *arguments]


def records(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def test_each_stage_leaves_its_file_whatever_it_comes_to(tmp_path: Path) -> None:
    look = "import pathlib, sys; sys.exit(len(list(pathlib.Path(sys.argv[1]).glob('*.json'))))"
    status = run(
        [
            Stage("good", python("print('fine')"), 60),
            Stage("counts", python(look, str(tmp_path)), 60, ["good"]),
            Stage("after", python("pass"), 60, ["counts"]),
            Stage("last", python("pass"), 60, ["good"]),
        ],
        tmp_path,
        {"device": "pretended"},
        {},
    )
    assert status == 1
    files = records(tmp_path)
    assert list(files) == ["1-good.json", "2-counts.json", "3-after.json", "4-last.json"]
    assert [record["outcome"] for record in files.values()] == ["passed", "failed", "left out", "passed"]
    assert files["1-good.json"]["output"] == "fine\n"
    assert files["2-counts.json"]["status"] == 1  # one file was there while the second ran
    assert files["3-after.json"]["reason"] == "counts did not pass"
    assert all(record["device"] == "pretended" for record in files.values())


def test_a_stage_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    assert run([Stage("slow", python(program), 3)], tmp_path, {}, {}) == 1
    [record] = records(tmp_path).values()
    assert record["outcome"] == "too slow"
    child = int(record["output"])
    deadline = time.monotonic() + 60
    while not ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


SLEEPS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
open(sys.argv[1], 'w').write('1')
print(child.pid)
time.sleep(600)
"""
RUNS = """
import sys
from pathlib import Path
from tests.gpu_check.stages import Stage, run
stages = [Stage("sleeps", [sys.executable, "-c", sys.argv[2], "{figures}"], 600), Stage("last", ["true"], 60)]
sys.exit(run(stages, Path(sys.argv[1]), {}, {}))
"""


def ended(pid: int) -> bool:
    """Whether a process has ended, or is about to be waited for."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text("utf-8").split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_stage_with_what_it_started_and_its_file_is_written(tmp_path: Path, sent: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole = subprocess.Popen([sys.executable, "-c", RUNS, str(tmp_path), SLEEPS], cwd=ROOT, env=environment)
    output = tmp_path / "1-sleeps.txt"
    deadline = time.monotonic() + 60
    while not (output.exists() and output.read_text("utf-8").endswith("\n")):
        assert time.monotonic() < deadline
        assert whole.poll() is None
        time.sleep(0.05)
    whole.send_signal(sent)
    assert whole.wait(60) == 1
    [record] = records(tmp_path).values()
    assert (record["outcome"], record["figures"]) == ("interrupted", 1)
    while not ended(int(record["output"])):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_limits_are_counted_by_the_clock(tmp_path: Path) -> None:
    """A clock that stands still until the stage has left something: the stage is cut off in its middle."""
    figures = tmp_path / "1-slow.figures"
    program = "import sys, time\nopen(sys.argv[1], 'w').write('[2, 3]')\nprint('half')\ntime.sleep(600)"
    stage = Stage("slow", python(program, "{figures}"), 5)
    assert run([stage], tmp_path, {}, {}, lambda: 10.0 if figures.exists() and figures.stat().st_size else 0.0) == 1
    [record] = records(tmp_path).values()
    assert (record["outcome"], record["figures"]) == ("too slow", [2, 3])
    assert (tmp_path / "1-slow.txt").read_text("utf-8").strip() in ("", "half")
    assert not figures.exists(), "they are in the stage's file"


def test_tests_are_counted_and_figures_taken(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no')\ndef test_c(): assert 0\n", "utf-8"
    )
    figures = "import json, sys; json.dump(dict(milliseconds=dict(step=2.5)), open(sys.argv[1], 'w'))"
    pytest_command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--junit-xml={report}",
    ]
    outcome = run(
        [Stage("tests", [*pytest_command, str(tests)], 120), Stage("figures", python(figures, "{figures}"), 60)],
        tmp_path / "out",
        {},
        {},
    )
    assert outcome == 1
    first, second = records(tmp_path / "out").values()
    assert first["tests"] == {"passed": 1, "failed": 1, "skipped": 1}
    assert second["figures"] == {"milliseconds": {"step": 2.5}}


def test_what_is_absent_or_only_measures_fails_nothing(tmp_path: Path) -> None:
    absent = Stage("sanitizer", ["no-such-program"], 60, absent="compute-sanitizer is not installed")
    measures = Stage("peers", python("raise SystemExit(3)"), 60, requires=False)
    assert run([absent, measures], tmp_path, {}, {}) == 0
    assert [record["outcome"] for record in records(tmp_path).values()] == ["absent", "failed"]


def test_a_stage_that_does_not_start_or_is_cut_off_leaves_its_file_all_the_same(tmp_path: Path) -> None:
    half = "import sys\n[open(path, 'w').write('<[]]') for path in sys.argv[1:]]\nraise SystemExit(1)"
    stages = [
        Stage("missing", [str(tmp_path / "no-such-program")], 60),
        Stage("half", python(half, "{report}", "{figures}"), 60),
        Stage("last", python("pass"), 60),
    ]
    assert run(stages, tmp_path / "out", {}, {}) == 1
    missing, half_done, last = records(tmp_path / "out").values()
    assert [r["outcome"] for r in (missing, half_done, last)] == ["failed", "failed", "passed"]
    assert "no-such-program did not start" in missing["reason"]
    assert half_done["status"] == 1
    assert "tests" not in half_done
    assert "figures" not in half_done


def test_files_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "7-old.json").write_text("{}", "utf-8")
    run([Stage("new", python("pass"), 60)], tmp_path, {}, {})
    assert list(records(tmp_path)) == ["1-new.json"]


def test_the_stages_take_under_ten_minutes_and_name_what_there_is() -> None:
    real = stages()
    sanitizers = ["memcheck", "racecheck", "synccheck"]
    names = ["smoke", "selfcheck", "steps", "operators", "system", *sanitizers, "custom", "peers"]
    assert [stage.name for stage in real] == names
    assert sum(stage.limit_s for stage in real) <= 10 * 60 - 40, "wheels are unpacked, and the machine is asked, first"
    for stage in real:
        for part in stage.command:
            if part.startswith(("tests/", "benchmarks/")):
                assert (ROOT / part.partition("::")[0]).exists(), part


def test_a_stage_that_fails_says_why_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([Stage("bad", python("print('fine so far')\nraise SystemExit('it broke')"), 60)], tmp_path, {}, {})
    assert capsys.readouterr().out.rstrip().endswith(" s (it broke)")
    assert records(tmp_path)["1-bad.json"]["output"] == "fine so far\nit broke\n"


def test_without_a_gpu_the_command_fails_with_a_sentence(tmp_path: Path) -> None:
    """Where CUDA shows no device to the process, whatever the machine has."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "tests.gpu_check", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    first, *others = done.stdout.splitlines()
    assert "1-smoke.json: failed" in first
    assert "(no GPU to check: device 'gpu:0' is not available: " in first
    assert all(re.search(r": (left out \(smoke did not pass\)|absent \(.*\))$", line) for line in others)
    assert len(others) == len(stages()) - 1


@pytest.mark.parametrize("key", ["device", "driver", "python", "versions", "commit"])
def test_a_machine_without_a_device_says_so(key: str) -> None:
    assert key in description()
    assert description()["versions"]["opbox-service"]


TESTS = """
import time
import pytest

class Case:
    def __init__(self, op): self.op = op

ROWS = [pytest.param(Case(op), dtype, id=f"{dtype}-{op}-{k}") for op in ("a", "b") for dtype in ("float16", "float32")
        for k in range(2)]

@pytest.mark.parametrize(("case", "dtype"), ROWS)
def test_row(case, dtype):
    time.sleep(SECONDS)
    assert case.op != "b" or dtype != "float32", "wrong"
"""


def run_rows(tmp_path: Path, seconds: float, limit_s: float, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """A stage over rows that take a while each: its status, and the lines that it left."""
    tests = tmp_path / "test_rows.py"
    tests.write_text(TESTS.replace("SECONDS", str(seconds)), "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "-p",
        "tests.gpu_check.results",
    ]
    command += ["--results={results}", "--stop-after={stop_after}", *options, str(tests)]
    status = run([Stage("rows", command, limit_s)], tmp_path / "out", {}, {"PYTHONPATH": str(ROOT)})
    return status, list(read(tmp_path / "out" / "1-rows.jsonl"))


def test_each_test_leaves_a_line_and_each_operators_first_row_comes_first(tmp_path: Path) -> None:
    status, lines = run_rows(tmp_path, 0, 120)
    assert status == 1
    names = [line["test"].partition("[")[2].rstrip("]") for line in lines]
    assert names[:2] == ["float16-a-0", "float16-b-0"]
    assert [name.partition("-")[0] for name in names[2:]] == ["float32"] * 4 + ["float16"] * 2
    assert {line["outcome"] for line in lines} == {"passed", "failed"}
    assert all("wrong" in line["failure"] for line in lines if line["outcome"] == "failed")


def test_first_rows_alone(tmp_path: Path) -> None:
    _, lines = run_rows(tmp_path, 0, 120, "--first-rows")
    assert len(lines) == 2


def test_no_test_begins_once_the_time_is_up(tmp_path: Path) -> None:
    """At most the first of eight rows runs: whatever came before it took longer than this stage may."""
    status, lines = run_rows(tmp_path, 3, 60, "--stop-after=2")
    assert status == 0
    assert len(lines) <= 1


def test_the_time_counts_from_the_start_of_the_program() -> None:
    program = "import time\ntime.sleep(0.5)\nfrom tests.gpu_check import results\nprint(results.began(), time.time())"
    before = time.time()
    done = subprocess.run(python(program), cwd=ROOT, capture_output=True, text=True, check=True)
    began, now = map(float, done.stdout.split())
    assert before - 0.1 <= began <= now - 0.4  # the system counts in hundredths of a second


def test_processes_of_xdist_end_at_the_same_time(tmp_path: Path) -> None:
    """Starting Python, pytest and its two processes takes longer than this."""
    status, lines = run_rows(tmp_path, 0, 60, "--stop-after=0.01", "-n", "2", "-p", "xdist")
    assert (status, lines) == (0, [])


def test_what_is_cut_off_keeps_the_lines_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"test": "a", "outcome": "passed"}\n{"test": "b", "outc', "utf-8")
    assert list(read(path)) == [{"test": "a", "outcome": "passed"}]
    assert list(read(tmp_path / "none.jsonl")) == []
