"""Stages: commands with a limit of time, each with a file of JSON that is written when it ends, whatever it came to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Stage", "run"]

TAIL = 4000
"""Characters of a stage's output that its JSON has."""
STOP_EARLY = 0.85
"""Part of its limit after which a stage begins nothing more: what has begun ends, and the report is written."""


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


def run(stages: Sequence[Stage], folder: Path, description: Mapping[str, Any], environment: Mapping[str, str]) -> int:
    """Run stages in order, print a line for each, and leave `<number>-<name>.json` of each in the folder.

    Args:
        description: device, driver and versions, which every file has.

    Returns:
        0 when every stage that is required passed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("[0-9]*-*.json*"):
        old.unlink()
    outcomes: dict[str, str] = {}
    for number, stage in enumerate(stages, 1):
        missing = [name for name in stage.needs if outcomes.get(name) != "passed"]
        if stage.absent:
            record: dict[str, Any] = {"outcome": "absent", "reason": stage.absent}
        elif missing:
            record = {"outcome": "left out", "reason": f"{', '.join(missing)} did not pass"}
        else:
            record = _run(stage, environment, folder / f"{number}-{stage.name}.jsonl")
        outcomes[stage.name] = record["outcome"]
        document = {"stage": stage.name, **record, **description}
        path = folder / f"{number}-{stage.name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(path)
        tests = "".join(f", {count} {kind}" for kind, count in record.get("tests", {}).items())
        print(f"{path}: {record['outcome']}{tests}{_seconds(record)}{_reason(record)}", flush=True)
    required = {stage.name for stage in stages if stage.requires}
    return int(any(outcomes[name] not in ("passed", "absent") for name in required))


def _seconds(record: Mapping[str, Any]) -> str:
    return f", {record['seconds']:.1f} s" if "seconds" in record else ""


def _reason(record: Mapping[str, Any]) -> str:
    return f" ({record['reason']})" if "reason" in record else ""


def _run(stage: Stage, environment: Mapping[str, str], results: Path) -> dict[str, Any]:
    """What a stage came to: outcome, seconds, status, the end of its output, its tests and figures."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+", errors="replace") as output:
        report, figures = Path(scratch, "report.xml"), Path(scratch, "figures.json")
        places = {"report": report, "figures": figures, "results": results.resolve()}
        places["stop_after"] = round(stage.limit_s * STOP_EARLY)
        command = [part.format(**places) for part in stage.command]
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, **stage.variables},
                start_new_session=True,
            )
        except OSError as error:
            return {"outcome": "failed", "reason": f"{command[0]} did not start: {error}", "command": command[1:]}
        try:
            status: int | None = process.wait(stage.limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Tests start servers, and these workers.
            _end(process)
        record: dict[str, Any] = {
            "outcome": {None: "too slow", 0: "passed"}.get(status, "failed"),
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
        if figures.exists():
            with contextlib.suppress(ValueError):
                record["figures"] = json.loads(figures.read_text("utf-8"))
    return record


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
