"""The command `gpu-selfcheck`: it needs the engine in this process, and a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import click

from .output import json_option, print_json

__all__ = ["selfcheck"]


@click.command()
@click.option("--device", default="gpu", show_default=True, metavar="NAME", help="gpu, gpu:1, …")
@click.option("--seconds", type=click.FloatRange(1, 86_400), default=600.0, show_default=True, help="Time limit.")
@click.option("--again", is_flag=True, help="Check everything anew.")
@json_option
def selfcheck(device: str, seconds: float, again: bool, as_json: bool) -> None:
    """Compare a GPU's kernels with NumPy, and keep the verdict.

    Servers and programs on this machine use what is right, and CuPy for the rest. Exits with 1 if something is wrong,
    or if the time was up.
    """
    try:
        check: Any = importlib.import_module("opbox_service.selfcheck.command").check
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opbox_service":
            raise
        raise click.ClickException("gpu-selfcheck: needs opbox-service: pip install 'opbox[server]'") from None

    def tell(unit: str, reason: str) -> None:
        if not as_json:
            print(f"{unit}: {reason or 'right'}", flush=True)

    verdict = check(device, seconds, again, tell)
    if as_json:
        print_json(verdict)
    else:
        print(f"{verdict['device']}: {verdict['kernels']}")
    if not verdict["right"]:
        click.get_current_context().exit(1)
