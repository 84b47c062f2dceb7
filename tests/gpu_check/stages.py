"""Stages: commands with a limit of time, each with a file of JSON that is written when it ends, whatever it came to.

A stage's output, its tests' lines and its figures are on disk while it runs: a machine that is taken away in its middle
leaves them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Stage", "read", "run"]

TAIL = 4000
"""Characters of a stage's output that its JSON has."""
STOP_EARLY = 0.85
"""Part of its limit after which a stage begins nothing more: what has begun ends, and the report is written."""
ASK_S = 0.2
"""Seconds after which the clock is asked again."""
INTERRUPTED = "interrupted"
"""Outcome of a stage that was ended by a signal to the whole."""
OUTCOMES = {None: "too slow", 0: "passed"}
"""Of a command, by its status."""


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: of its file.
        command: its program. {report} becomes a file for pytest's --junit-xml, {figures} one for a document of JSON,
            {results} the stage's `.jsonl` beside its file, {stop_after} seconds after which it should begin nothing.
        limit_s: then it is ended, with all processes that it has started.
        needs: the stages without which it is left out.
        absent: why it cannot run on this machine; empty: it can.
        requires: whether the whole fails where it does; a stage that only measures may.
        variables: of its environment.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    needs: Sequence[str] = ()
    absent: str = ""
    requires: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


def run(
    stages: Sequence[Stage],
    folder: Path,
    description: Mapping[str, Any],
    environment: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run stages in order, print a line for each, and leave `<number>-<name>.json` of each in the folder.

    SIGTERM and SIGINT end the stage that runs, with all processes that it has started; its file is written too.

    Args:
        stages: they are left out where one that they need did not pass.
        folder: also has each stage's output (`.txt`), the lines of its tests (`.jsonl`), and its figures while it runs.
        description: device, driver and versions, which every file has.
        environment: variables for all stages.
        clock: seconds; the limits are counted by it.

    Returns:
        0 when every stage that is required passed.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("[0-9]*-*.*"):
        old.unlink()
    outcomes: dict[str, str] = {}
    with _interruptible():
        for number, stage in enumerate(stages, 1):
            path = folder / f"{number}-{stage.name}.json"
            missing = [name for name in stage.needs if outcomes.get(name) != "passed"]
            if stage.absent:
                record: dict[str, Any] = {"outcome": "absent", "reason": stage.absent}
            elif missing:
                record = {"outcome": "left out", "reason": f"{', '.join(missing)} did not pass"}
            else:
                record = _run(stage, environment, path, clock)
            outcomes[stage.name] = record["outcome"]
            document = {"stage": stage.name, **record, **description}
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            partial.replace(path)
            tests = "".join(f", {count} {kind}" for kind, count in record.get("tests", {}).items())
            print(f"{path}: {record['outcome']}{tests}{_seconds(record)}{_reason(record)}", flush=True)
            if record["outcome"] == INTERRUPTED:
                return 1
    required = {stage.name for stage in stages if stage.requires}
    return int(any(outcomes[name] not in ("passed", "absent") for name in required))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Within, SIGTERM and SIGINT raise KeyboardInterrupt; in the main thread, which alone can say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell's background job ignores SIGINT.
    handlers = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _seconds(record: Mapping[str, Any]) -> str:
    return f", {record['seconds']:.1f} s" if "seconds" in record else ""


def _reason(record: Mapping[str, Any]) -> str:
    return f" ({record['reason']})" if "reason" in record else ""


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a stage's tests (tests/gpu_check/results.py), but not one that was cut off."""
    if not path.exists():
        return
    for line in path.read_text("utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _run(stage: Stage, environment: Mapping[str, str], path: Path, clock: Callable[[], float]) -> dict[str, Any]:
    """What a stage came to: outcome, seconds, status, the end of its output, its tests and figures."""
    figures, written = path.with_suffix(".figures"), path.with_suffix(".txt")
    with tempfile.TemporaryDirectory() as scratch, written.open("w+", encoding="utf-8", errors="replace") as output:
        report = Path(scratch, "report.xml")
        places = {"report": report, "figures": figures, "results": path.with_suffix(".jsonl")}
        places["stop_after"] = round(stage.limit_s * STOP_EARLY)
        command = [part.format(**places) for part in stage.command]
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, **stage.variables},
                start_new_session=True,
            )
        except OSError as error:
            return {"outcome": "failed", "reason": f"{command[0]} did not start: {error}", "command": command[1:]}
        outcome = ""
        try:
            status = _wait(process, stage.limit_s, clock)
        except KeyboardInterrupt:
            status, outcome = None, INTERRUPTED
        finally:
            # Tests start servers, and these workers.
            _end(process)
        record: dict[str, Any] = {
            "outcome": outcome or OUTCOMES.get(status, "failed"),
            "status": status,
            "seconds": round(time.monotonic() - start, 3),
            "limit_s": stage.limit_s,
            "command": command[1:],
        }
        output.seek(0)
        record["output"] = output.read()[-TAIL:]
        if record["outcome"] == "failed" and (lines := record["output"].strip().splitlines()):
            record["reason"] = lines[-1].strip()
        # A stage that was ended may have been writing them.
        if report.exists():
            with contextlib.suppress(ElementTree.ParseError):
                record["tests"] = _tests(report)
        elif counts := Counter(line["outcome"] for line in read(path.with_suffix(".jsonl"))):
            record["tests"] = {kind: counts[kind] for kind in ("passed", "failed", "skipped")}
        if figures.exists():
            with contextlib.suppress(ValueError):
                record["figures"] = json.loads(figures.read_text("utf-8"))
            figures.unlink()
    return record


def _wait(process: subprocess.Popen[bytes], limit_s: float, clock: Callable[[], float]) -> int | None:
    """Wait for a process, but no longer than its limit: its status, or None."""
    start = clock()
    while (left := limit_s - (clock() - start)) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, ASK_S))
    return process.poll()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tests(report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    counts = {
        kind: sum(int(suite.get(kind, 0)) for suite in suites) for kind in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    return {"passed": counts["tests"] - failed - counts["skipped"], "failed": failed, "skipped": counts["skipped"]}
