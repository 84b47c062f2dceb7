"""Output formats of commands: JSON when asked, a table with colours at a terminal, plain columns into a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

__all__ = [
    "json_option",
    "print_json",
    "rich_console",
    "rich_table",
    "seconds_text",
    "table_text",
    "write",
]


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --json of a command, which gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: Any) -> None:
    """Print a value as JSON, in lines that a program may read as one document."""
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def rich_console() -> Any:
    """rich's console where standard output is a terminal and rich is installed (`opbox[cli]`); None elsewhere."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> Any:
    """A table of rich's."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    looks: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
    table = Table(title=title or None, title_justify="left", expand=False, **looks)
    for number, column in enumerate(columns):
        right = all(isinstance(row[number], int | float) for row in rows) and bool(rows)
        table.add_column(column, justify="right" if right else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    return table


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows in columns of spaces, under the columns' names."""
    lines = [[str(value) for value in row] for row in (columns, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def write(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; without rows its title alone."""
    console = rich_console()
    if console is not None and rows:
        console.print(rich_table(columns, rows, title))
        return
    if title:
        print(title)
    if rows:
        print(table_text(columns, rows))


def seconds_text(seconds: float) -> str:
    """A time in two units at most: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
