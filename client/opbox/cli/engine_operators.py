"""Operators that the engine has beside those of opbox: of packages, of a server's own files, of files named here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from opbox_protocol.errors import UnknownOperatorError

from .. import _schema, connection
from .. import symbol as symbols

__all__ = ["find_operator", "load_symbol", "ops_option"]


def ops_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --ops of a command: files that register operators with the engine in this process."""
    return click.option(
        "--ops",
        multiple=True,
        type=click.Path(dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=_name_files,
        help="A Python file that registers operators; several --ops name several.",
    )(command)


def _name_files(ctx: click.Context, param: click.Parameter, files: Sequence[str]) -> None:
    """Let the engine load the files when it starts."""
    if not files:
        return
    url = os.environ.get("OPBOX_URL")
    if url:
        raise click.UsageError(
            f"--ops: expected the engine in this process, got the server at {url}, which has its own files: start it "
            "with opbox serve --ops, or unset OPBOX_URL"
        )
    os.environ["OPBOX_OPS"] = json.dumps([str(Path(file).absolute()) for file in files])


def find_operator(name: str) -> _schema.Operator | None:
    """The operator of that name or alias, or None; the engine is asked where opbox has none."""
    if _schema.find(name) is None:
        connection.refresh_operators()
    return _schema.find(name)


def load_symbol(file: str) -> Any:
    """The saved symbol of a file; where opbox does not know an operator of it, the engine is asked for its own."""
    try:
        return symbols.load(file)
    except UnknownOperatorError:
        if not connection.refresh_operators():
            raise
    return symbols.load(file)
