"""`opbox dist run`: a training by several workers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from opbox_protocol.errors import BadRequestError

from ..dist import run_program

__all__ = ["dist", "run"]


@click.group("dist")
def dist() -> None:
    """Trainings by several workers, whose servers add up gradients (mx.kv.create("dist_sync"))."""


@dist.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--workers", "-n", type=click.IntRange(1, 256), default=2, show_default=True, help="Number of workers.")
@click.option("--url", "urls", multiple=True, help="A server; several are used in turn.  [default: OPBOX_URL]")
@click.option("--restarts", type=click.IntRange(0, 256), default=0, help="How often all start again after a failure.")
@click.option("--min-workers", type=click.IntRange(1, 256), help="Start again with fewer workers, down to this.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    workers: int,
    urls: tuple[str, ...],
    restarts: int,
    min_workers: int | None,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run PROGRAM, a Python file or a command, once for each worker, and wait for all of them.

    Each line that a worker prints has its rank before it. When one fails, all end.
    """
    if min_workers is not None and min_workers > workers:
        raise click.UsageError(f"--min-workers: expected at most {workers}, got {min_workers}")
    is_python = program.endswith(".py")
    if is_python and not Path(program).is_file():
        raise BadRequestError(f"run: expected a Python file, got {program!r}, which is not there")
    command = [sys.executable, program] if is_python else [program]
    run_program(
        [*command, *arguments], workers=workers, urls=urls, restarts=restarts, min_workers=min_workers, write=click.echo
    )
