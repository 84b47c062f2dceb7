"""The commands `backup` and `restore`: a server's state directory, on the server's machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .output import json_option, print_json

__all__ = ["backup", "restore"]


def _part(name: str, command: str) -> Any:
    """A module of the server's that makes or reads backups."""
    try:
        return importlib.import_module(f"opbox_service.backup.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opbox_service":
            raise
        raise click.ClickException(f"{command}: needs opbox-service: pip install 'opbox[server]'") from None


def _state_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--state-dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="OPBOX_STATE_DIR",
        required=True,
        help="The server's state directory; by default the one that OPBOX_STATE_DIR names.",
    )(command)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@_state_option
@click.option("--tokens-file", "tokens", type=click.Path(path_type=Path, dir_okay=False), help="Also take this file.")
@json_option
def backup(file: Path, folder: Path, tokens: Path | None, as_json: bool) -> None:
    """Write a backup of a server's state directory to FILE, or to standard output (-).

    The server may run meanwhile. Checkpoints, published models, datasets, usage and the audit log are in it; files of
    tokens are not, unless you name one.
    """
    if file == Path("-") and as_json:
        raise click.UsageError("--json: expected a FILE, got standard output, which has the backup")
    writing = _part("writing", "backup")
    report = writing.back_up(folder, sys.stdout.buffer if file == Path("-") else file, tokens)
    if as_json:
        print_json(report.to_json())
    elif file == Path("-"):
        sys.stdout.buffer.flush()
    else:
        parts = [f"{kind} {number}" for kind, number in report.files.items()]
        print(f"{file}: {sum(report.nbytes.values())} bytes in {', '.join(parts) or 'no files'}")
    for sentence in report.absent:
        print(f"opbox backup: left out: {sentence}", file=sys.stderr)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@_state_option
@click.option("--replace", is_flag=True, help="Remove the state that the directory has.")
@click.option(
    "--tokens-file", "tokens", type=click.Path(path_type=Path, dir_okay=False), help="Write the file of tokens here."
)
@json_option
def restore(file: Path, folder: Path, replace: bool, tokens: Path | None, as_json: bool) -> None:
    """Put the backup FILE, or one from standard input (-), into a server's state directory.

    No server may run on the directory. If anything is wrong with the backup, the directory stays as it is.
    """
    restoring = _part("restoring", "restore")
    about = restoring.restore(sys.stdin.buffer if file == Path("-") else file, folder, replace=replace, tokens=tokens)
    if as_json:
        print_json(about.to_json())
    else:
        print(f"{folder}: restored the backup of {about.time}, written by opbox {about.opbox}")
