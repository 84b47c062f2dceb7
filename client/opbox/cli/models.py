"""The command `models`: those that the server serves by the Open Inference Protocol."""

from __future__ import annotations

import click

from opbox_protocol import routes

from .. import connection
from ..byte_counts import bytes_text
from .output import json_option, print_json, write

__all__ = ["models"]

COLUMNS = ("model", "version", "state", "device", "size", "requests", "failed", "p50 ms", "p99 ms", "runs by size")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the models that the server serves and their traffic, or load or unload one."""
    if ctx.invoked_subcommand is not None:
        return
    answer = connection.transport().call("GET", routes.MODELS).header
    if as_json:
        print_json(answer)
        return
    rows: list[list[object]] = [
        [
            row["name"],
            row["version"],
            f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
            row["device"] or "",
            bytes_text(row["bytes"]),
            row["requests"],
            row["failed"],
            "" if row["p50_ms"] is None else f"{row['p50_ms']:.2f}",
            "" if row["p99_ms"] is None else f"{row['p99_ms']:.2f}",
            ", ".join(f"{size}: {count}" for size, count in row["batches"].items()),
        ]
        for row in answer["models"]
    ]
    ready = sum(row["state"] == "READY" for row in answer["models"])
    write(COLUMNS, rows, f"{len(rows)} model{'' if len(rows) == 1 else 's'}; {ready} ready")


def _command(verb: str, path: str, done: str, what: str) -> None:
    @models.command(verb, help=what)
    @click.argument("names", nargs=-1, required=True, metavar="NAME...")
    @json_option
    def run(names: tuple[str, ...], as_json: bool) -> None:
        for name in names:
            connection.transport().call("POST", path.format(model=name), {})
            if not as_json:
                print(f"{done} {name}")
        if as_json:
            print_json({done: list(names)})


_command("load", routes.MODEL_LOAD, "loaded", "Load models, or load them again from their files.")
_command("unload", routes.MODEL_UNLOAD, "unloaded", "Serve models no more.")
