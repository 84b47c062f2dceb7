"""Linting a file: every operator, every case, every check; and the command line for it."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from opbox_protocol.errors import MXNetError

from .checks import CHECKS
from .report import CaseReport, OperatorReport, Report, Verdict
from .running import Trial, usual_case
from .subjects import Subject, find_subjects

__all__ = ["lint", "main"]


AGAIN = Verdict("skip", "it does not run, as said above")


def lint(path: str | Path, only: Sequence[str] = ()) -> Report:
    """Check the operators of a file.

    Args:
        path: a Python file with operators; it is loaded, as `import` would.
        only: names of operators; all when empty.

    Raises:
        MXNetError: the file cannot be loaded, or has no operator of such a name.
    """
    path = Path(path)
    subjects = find_subjects(path)
    names = [subject.name for subject in subjects]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise MXNetError(f"lint: {unknown[0]!r}: expected one of {', '.join(names) or 'no operators at all'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the engine, which warns of what the checks find
        reports = [_operator(subject) for subject in subjects if not only or subject.name in only]
    return Report(path.name, reports)


def _operator(subject: Subject) -> OperatorReport:
    report = OperatorReport(subject.name, subject.kind)
    try:
        usual, said = (None, "") if subject.cases else usual_case(subject)
    except ValueError as error:
        report.problem = str(error)
        return report
    for case in subject.cases if usual is None else [usual]:
        case_report = CaseReport(dict(case.shapes()), dict(case.params))
        report.cases.append(case_report)
        try:
            trial = Trial(subject, case)
            case_report.inputs = dict(trial.shapes)
            bound = trial.bind()
            bound.forward()
        except Exception as error:
            case_report.checks["runs"] = Verdict("fail", _sentence(error))
            continue
        case_report.checks["runs"] = Verdict("warn", said) if said else Verdict("pass")
        try:
            bound.backward()
        except Exception as error:
            case_report.checks["runs"] = Verdict("fail", _sentence(error))
        for name, check in CHECKS.items():
            try:
                case_report.checks[name] = check(trial)
            except Exception as error:
                failed = Verdict("fail", _sentence(error))
                again = failed == case_report.checks["runs"] and not (
                    name == "inputs kept" and "writes to" in failed.detail
                )
                case_report.checks[name] = AGAIN if again else failed
    return report


def _sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, MXNetError | ValueError | AssertionError) else f"{type(error).__name__}: {text}"


class _LintParser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of the other commands."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}: see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """`opbox lint FILE`: 0 when all is well, 1 when a check failed, 2 when the file cannot be checked."""
    parser = _LintParser(prog="opbox lint", description="Run the operators of a file and check them.")
    parser.add_argument("file", help="a Python file with operators; it is loaded")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this operator (may be repeated)")
    options = parser.parse_args(arguments)
    try:
        report = lint(options.file, options.only)
    except (MXNetError, OSError, SyntaxError, ValueError) as error:
        print(f"opbox lint: {str(error).removeprefix('lint: ')}", file=sys.stderr)
        return 2
    if not report.operators:
        print(
            f"opbox lint: {options.file}: no operators: register a CustomOpProp, or define a NumpyOp", file=sys.stderr
        )
        return 2
    print(json.dumps(report.json(), indent=2) if options.json else report.table())
    return 0 if report.ok else 1
