"""Verdicts, as a table and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CaseReport", "OperatorReport", "Report", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        verdict: "pass", "fail", "warn": what may be meant but seldom is, or "skip": the check does not apply.
        detail: why, or what was seen.
    """

    verdict: str
    detail: str = ""


@dataclass
class CaseReport:
    """The checks of an operator on one set of inputs."""

    inputs: dict[str, Any]
    params: dict[str, Any]
    checks: dict[str, Verdict] = field(default_factory=dict)

    def title(self) -> str:
        """The case in a line."""
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in self.inputs.items())
        params = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return "; ".join(part for part in (shapes, params) if part) or "no inputs"


@dataclass
class OperatorReport:
    """The cases of an operator; `problem` when none could be run."""

    name: str
    kind: str
    cases: list[CaseReport] = field(default_factory=list)
    problem: str = ""


@dataclass
class Report:
    """The operators of a file."""

    file: str
    operators: list[OperatorReport] = field(default_factory=list)

    def failures(self) -> Iterator[str]:
        """One line each: the operator, the check, what is wrong."""
        for operator in self.operators:
            if operator.problem:
                yield f"{operator.name}: {operator.problem}"
            for case in operator.cases:
                for check, verdict in case.checks.items():
                    if verdict.verdict == "fail":
                        yield f"{operator.name} ({case.title()}): {check}: {verdict.detail}"

    @property
    def ok(self) -> bool:
        """True if there are operators, and nothing failed."""
        return bool(self.operators) and not any(True for _ in self.failures())

    def json(self) -> dict[str, Any]:
        """For `--json`: file, ok, and each operator's cases with their checks."""
        return {
            "file": self.file,
            "ok": self.ok,
            "operators": [
                {
                    "name": operator.name,
                    "kind": operator.kind,
                    "problem": operator.problem,
                    "cases": [
                        {
                            "inputs": {name: list(shape) for name, shape in case.inputs.items()},
                            "params": {name: str(value) for name, value in case.params.items()},
                            "checks": {
                                check: {"verdict": verdict.verdict, "detail": verdict.detail}
                                for check, verdict in case.checks.items()
                            },
                        }
                        for case in operator.cases
                    ],
                }
                for operator in self.operators
            ],
        }

    def table(self, width: int = 120) -> str:
        """The verdicts, a line each."""
        lines = []
        for operator in self.operators:
            lines.append(f"{operator.name} ({operator.kind})")
            if operator.problem:
                lines += _wrapped("FAIL  ", operator.problem, "  ", width)
            for case in operator.cases:
                lines += _wrapped("", case.title(), "  ", width)
                for check, verdict in case.checks.items():
                    mark = "FAIL" if verdict.verdict == "fail" else verdict.verdict
                    lines += _wrapped(f"{check:16}{mark:6}", verdict.detail, "    ", width)
            lines.append("")
        failed = sum(1 for _ in self.failures())
        count = sum(len(case.checks) for operator in self.operators for case in operator.cases)
        many = "" if len(self.operators) == 1 else "s"
        warned = sum(
            verdict.verdict == "warn"
            for operator in self.operators
            for case in operator.cases
            for verdict in case.checks.values()
        )
        warnings = f", {warned} warning{'' if warned == 1 else 's'}" if warned else ""
        lines.append(f"{len(self.operators)} operator{many}, {count} checks, {failed or 'none'} failed{warnings}")
        return "\n".join(lines)


def _wrapped(head: str, text: str, indent: str, width: int) -> list[str]:
    inside = indent + " " * len(head)
    first, *rest = text.splitlines() or [""]
    lines = textwrap.wrap(first, width, initial_indent=indent + head, subsequent_indent=inside) or [indent + head]
    return [line.rstrip() for line in (*lines, *(inside + line for line in rest))]
