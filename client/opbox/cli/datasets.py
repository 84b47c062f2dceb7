"""The command `datasets`: those that the server has under a name."""

from __future__ import annotations

import click

from opbox_protocol import routes

from .. import connection
from ..byte_counts import bytes_text
from .output import json_option, print_json, write

__all__ = ["datasets"]

COLUMNS = ("dataset", "owner", "arrays", "rows", "size", "published")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def datasets(ctx: click.Context, as_json: bool) -> None:
    """List your datasets on the server and those that others have published, or delete some."""
    if ctx.invoked_subcommand is not None:
        return
    answer = connection.transport().call("GET", routes.DATASETS).header
    if as_json:
        print_json(answer)
        return
    rows: list[list[object]] = [
        [
            row["name"],
            row["owner"],
            ", ".join(array["name"] for array in row["arrays"]),
            max(array["shape"][0] for array in row["arrays"]),
            bytes_text(row["bytes"]),
            "yes" if row["published"] else "no",
        ]
        for row in answer["datasets"]
    ]
    count = len(rows)
    used = bytes_text(answer["used_bytes"])
    write(COLUMNS, rows, f"{count} dataset{'' if count == 1 else 's'}; {used} stored, rows without a name included")


@datasets.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def delete(names: tuple[str, ...], as_json: bool) -> None:
    """Delete datasets of yours."""
    for name in names:
        connection.transport().call("DELETE", routes.DATASET.format(dataset=name))
        if not as_json:
            print(f"deleted {name}")
    if as_json:
        print_json({"deleted": list(names)})
