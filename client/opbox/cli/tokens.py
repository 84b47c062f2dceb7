"""The command `token`: it edits a server's file of tokens, on the server's machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from .output import json_option, print_json, write

__all__ = ["token"]

COLUMNS = ("id", "name", "scopes", "expires", "kept as")


def _edits() -> Any:
    """The part of the server that edits such files."""
    try:
        return importlib.import_module("opbox_service.api.token_edits")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opbox_service":
            raise
        raise click.ClickException("token: needs opbox-service: pip install 'opbox[server]'") from None


def _file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--file",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="OPBOX_TOKENS_FILE",
        required=True,
        help="The server's file of tokens; by default the one that OPBOX_TOKENS_FILE names.",
    )(command)


@click.group()
def token() -> None:
    """Make tokens for a server, list or remove them.

    A file keeps hashes of tokens. The server reads it again when it changes.
    """


@token.command()
@click.argument("name")
@click.option("--scopes", default="run", show_default=True, help="What it may do, with commas: run,upload-python.")
@click.option("--expires", metavar="TIME", help="90d, 12h, 2030-01-31 or 2030-01-31T12:00:00Z; by default never.")
@click.option("--chosen", is_flag=True, help="Ask for a token that you choose, or read it from standard input.")
@_file_option
@json_option
def new(name: str, scopes: str, expires: str | None, chosen: bool, path: Path, as_json: bool) -> None:
    """Make a token for the owner NAME, and print it: it is not shown again.

    Tokens of one name share sessions.
    """
    edits = _edits()
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    until = None if expires is None else edits.expiry(expires)
    own = _chosen() if chosen else None
    secret = edits.add_token(path, name, wanted, until, own)
    row = edits.listed(path)[-1].to_json()
    if as_json:
        print_json(row if chosen else {**row, "token": secret})
    elif not chosen:
        print(secret)
    if not as_json:
        print(f"opbox token: {path} has its hash, with the id {row['id']}", file=sys.stderr)
    _warn(edits, path)


@token.command("list")
@_file_option
@json_option
def listed(path: Path, as_json: bool) -> None:
    """List the tokens of a file; a file has no more of a random token than its hash."""
    edits = _edits()
    rows = [row.to_json() for row in edits.listed(path)]
    if as_json:
        print_json({"tokens": rows})
    else:
        table: list[list[object]] = [
            [
                row["id"],
                row["name"],
                ", ".join(row["scopes"]),
                f"{row['expires'] or 'never'}{' (expired)' if row['expired'] else ''}",
                row["kind"],
            ]
            for row in rows
        ]
        write(COLUMNS, table, f"{len(rows)} token{'' if len(rows) == 1 else 's'}")
    _warn(edits, path)


@token.command()
@click.argument("name")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--all", "every", is_flag=True, help="All tokens of the name.")
@_file_option
@json_option
def remove(name: str, ids: Sequence[str], every: bool, path: Path, as_json: bool) -> None:
    """Remove the token of the owner NAME, or those with an ID; the beginning of an ID is enough.

    Within a second the server refuses it. Quotas in the file go with the owner's last token.
    """
    gone = _edits().remove_tokens(path, name, ids, every=every)
    if as_json:
        print_json(gone)
        return
    for id in gone["removed"]:
        print(f"removed {id} of {name}")
    if gone["terms"]:
        terms = ", ".join(f"{field} {value}" for field, value in gone["terms"].items())
        print(f"removed the terms of {name}: {terms}")


def _chosen() -> str:
    """A token that somebody types twice, or the line that comes in."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    return str(click.prompt("token", hide_input=True, confirmation_prompt=True, err=True))


def _warn(edits: Any, path: Path) -> None:
    if edits.readable_by_others(path):
        print(f"opbox token: {path}: other users can read plain tokens in it: chmod 600 {path}", file=sys.stderr)
