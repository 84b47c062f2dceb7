"""`opbox lint FILE`: the operators in a file, run and checked one by one, on the engine that this process uses.

    from opbox.lint import lint
    report = lint("my_operator.py")
    print(report.table())

`subjects` finds the operators, `cases` the inputs to run them on, `checks` has one function a check, `running` binds
and runs, and `report` holds the verdicts.
"""

from .linting import lint, main
from .report import Report

__all__ = ["Report", "lint", "main"]
