"""The command `models`: those that the server serves by the Open Inference Protocol."""

from __future__ import annotations

import click

from opbox_protocol import routes

from .. import connection
from ..byte_counts import bytes_text
from ..publishing import EVERYONE, publish_call, remove_call
from .output import json_option, print_json, write

__all__ = ["models"]

COLUMNS = (
    "model",
    "version",
    "state",
    "owner",
    "callers",
    "device",
    "size",
    "requests",
    "failed",
    "p50 ms",
    "p99 ms",
    "runs by size",
)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the models that the server serves and their traffic; publish, load, unload or remove one."""
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
            row["owner"] or "",
            EVERYONE if row["callers"] is None else ", ".join(row["callers"]),
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


@models.command()
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False))
@click.option("--to", multiple=True, metavar="OWNER", help="An owner who may call it beside you, or everyone.")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Its version; by default the next.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="A model.toml.")
@json_option
def publish(
    name: str, files: tuple[str, ...], to: tuple[str, ...], version: int | None, config: str | None, as_json: bool
) -> None:
    """Publish a model under NAME: its symbol's file and its parameters', or an .onnx file; if wanted a .txt file
    with a class's name on each line."""
    call = publish_call(name, files, EVERYONE if EVERYONE in to else to, version, config)
    answer = connection.transport().call(*call).header
    if as_json:
        print_json({key: value for key, value in answer.items() if key != "outputs"})
        return
    callers = EVERYONE if answer["callers"] is None else ", ".join(answer["callers"])
    print(f"published {answer['name']}, version {answer['version']} ({bytes_text(answer['bytes'])})")
    if callers:
        print(f"{callers} may call it as {answer['full_name']}")


@models.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Only this version.")
@json_option
def remove(names: tuple[str, ...], version: int | None, as_json: bool) -> None:
    """Remove models that you published, or one version of each."""
    for name in names:
        connection.transport().call(*remove_call(name, version))
        if not as_json:
            print(f"removed {name}" if version is None else f"removed version {version} of {name}")
    if as_json:
        print_json({"removed": list(names)})


_command("load", routes.MODEL_LOAD, "loaded", "Load models, or load them again from their files.")
_command("reload", routes.MODEL_LOAD, "reloaded", "Load models again from their files, as load does.")
_command("unload", routes.MODEL_UNLOAD, "unloaded", "Serve models no more.")
