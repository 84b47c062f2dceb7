"""The report of drawn calls: how many agree, by operator and aspect, and what differs.

    operator           forward  gradient  shape  type  req  raises  dtypes
    Pooling               12/12      7/7    ...

Runs, whole ones or slices, keep their counts in docs/conformance.json, from which `make schema` tells of each operator
in docs/operators.md. `python -m tests.conformance.reporting` prints the table of what is kept.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .drawing import Drawn
from .examining import ASPECTS

__all__ = ["PAGE", "Tally", "recorded_rows", "report", "write"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.json"
AGREE = ("same", "both refuse")


@dataclass
class Tally:
    """Verdicts on the calls of one operator."""

    op: str
    counts: dict[str, list[int]] = field(default_factory=dict)
    dtypes: set[str] = field(default_factory=set)
    passed: int = 0
    differences: list[tuple[str, str]] = field(default_factory=list)

    def add(self, drawn: Drawn, verdicts: Mapping[str, str]) -> None:
        """Count the verdicts on one call."""
        for aspect, verdict in verdicts.items():
            if verdict == "passed":
                self.passed += 1
                continue
            agreed, total = self.counts.setdefault(aspect, [0, 0])
            self.counts[aspect] = [agreed + (verdict in AGREE), total + 1]
            if verdict not in AGREE:
                self.differences.append((aspect, f"{aspect}: {drawn.case.id} in {drawn.dtype}: {verdict}"))
        if verdicts.get("forward") == "same":
            self.dtypes.add(drawn.dtype)

    def json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "op": self.op,
            **{aspect: self.counts[aspect] for aspect in ASPECTS if aspect in self.counts},
            "dtypes": sorted(self.dtypes),
            "passed": self.passed,
            "differs": sorted({aspect for aspect, _ in self.differences}),
        }


def report(tallies: Iterable[Mapping[str, Any]]) -> list[str]:
    """The table, worst first, and a line of sums."""
    rows = sorted(tallies, key=lambda row: (-len(row["differs"]), row["op"]))
    lines = [f"{'operator':36}" + "".join(f"{aspect:>10}" for aspect in ASPECTS) + "  dtypes"]
    for row in rows:
        cells = ["/".join(map(str, row[aspect])) if aspect in row else "-" for aspect in ASPECTS]
        lines.append(f"{row['op']:36}" + "".join(f"{cell:>10}" for cell in cells) + "  " + " ".join(row["dtypes"]))
    sums = ["/".join(str(sum(row[aspect][i] for row in rows if aspect in row)) for i in (0, 1)) for aspect in ASPECTS]
    lines.append(f"{f'{len(rows)} operators':36}" + "".join(f"{total:>10}" for total in sums))
    different = [row["op"] for row in rows if row["differs"]]
    lines.append(f"{len(different)} operators differ somewhere: {', '.join(different) or 'none'}")
    return lines


def recorded_rows() -> dict[str, dict[str, Any]]:
    """The rows that are kept, by operator."""
    rows: dict[str, dict[str, Any]] = json.loads(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    return rows


def write(tallies: Iterable[Mapping[str, Any]], page: Path = PAGE) -> None:
    """Keep the report for the operators' page, beside what is there of other operators."""
    rows = {row["op"]: {key: value for key, value in row.items() if key != "op"} for row in tallies}
    if not rows:
        return
    with page.open("a+", encoding="utf-8") as file:
        # The workers of a run that is spread over processes write here, one after the other.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        after = json.loads(file.read() or "{}") | rows
        text = ",\n".join(f"  {json.dumps(op)}: {json.dumps(row, sort_keys=True)}" for op, row in sorted(after.items()))
        file.truncate(0)
        file.write("{\n" + text + "\n}\n")


if __name__ == "__main__":
    print("\n".join(report({"op": op, **row} for op, row in recorded_rows().items())))
