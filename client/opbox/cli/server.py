"""Commands that ask a server: `status`, `sessions`, `usage` and `ops`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem

from opbox_protocol import routes
from opbox_protocol.errors import BadRequestError, NotFoundError

from .. import _schema, connection
from .._schema.functions import docstring
from ..byte_counts import bytes_text
from .output import json_option, print_json, rich_console, rich_table, seconds_text, table_text, write

__all__ = ["ops", "sessions", "status", "usage"]

COLUMNS = ("session", "device", "age", "idle", "memory", "objects", "executors", "steps", "waiting")


def _row(session: dict[str, Any]) -> list[object]:
    return [
        session["id"],
        ", ".join(session.get("devices") or [session.get("device", "")]),
        seconds_text(session.get("age_s", 0)),
        seconds_text(session.get("idle_s", 0)),
        bytes_text(session.get("bytes", 0)),
        session.get("objects", 0),
        session.get("executors", 0),
        session.get("steps", 0),
        session.get("waiting", 0),
    ]


def _sessions(everybody: bool) -> list[dict[str, Any]]:
    path = routes.ADMIN_SESSIONS if everybody else routes.SESSIONS
    listed: list[dict[str, Any]] = connection.transport().call("GET", path).header.get("sessions", [])
    return listed


def _count(number: int, whose: str) -> str:
    return f"{number} session{'' if number == 1 else 's'} {whose}"


def _state() -> dict[str, Any]:
    """Collect what the command `status` prints: the server, its devices and your sessions."""
    transport = connection.transport()
    about = transport.call("GET", routes.ABOUT).header
    transport.call("GET", routes.READY)
    return {
        "name": about.get("name", "opbox"),
        "version": about.get("version", ""),
        "cpu": about.get("cpu", ""),
        "gpu": about.get("gpu", ""),
        "code": about.get("code", ""),
        "address": transport.address,
        "ready": True,
        "sessions": _sessions(False),
        "kernels": _kernels(transport.call("GET", routes.DEVICES).header.get("devices", [])),
    }


def _kernels(devices: Sequence[dict[str, Any]]) -> dict[str, str]:
    """By GPU: what its self-check says of opbox's kernels. Workers of one server have one verdict."""
    return {row["device"]: row["kernels"] for row in devices if row.get("kernels")}


def _heading(state: dict[str, Any]) -> str:
    sessions = _count(len(state["sessions"]), "of yours")
    lines = [f"{state['name']} {state['version']} at {state['address']}", "ready"]
    # A server from before it said so does not, and one without a GPU has no line for it.
    lines += [f"{kind}: {state[kind]}" for kind in ("cpu", "gpu") if state[kind]]
    lines += [state["code"]] if state["code"] else []
    lines += [f"{device}: {words}" for device, words in state["kernels"].items()]
    return "\n".join([*lines, sessions])


@click.command()
@click.option("--live", is_flag=True, help="Show it anew until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS")
@json_option
def status(live: bool, interval: float, as_json: bool) -> None:
    """The server that OPBOX_URL names, and your sessions on it."""
    if live and as_json:
        raise click.UsageError("expected --live or --json, got both")
    if live:
        _watch(interval)
        return
    state = _state()
    if as_json:
        print_json(state)
        return
    print(_heading(state))
    if state["sessions"]:
        write(COLUMNS, [_row(session) for session in state["sessions"]])


def _watch(interval: float) -> None:
    console = rich_console()
    if console is None:
        while True:  # one after the other, for a log
            state = _state()
            print(time.strftime("%H:%M:%S"), _heading(state).splitlines()[0])
            print(table_text(COLUMNS, [_row(session) for session in state["sessions"]]), flush=True)
            time.sleep(interval)
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def shown() -> Any:
        state = _state()
        table = rich_table(COLUMNS, [_row(session) for session in state["sessions"]])
        return Group(Text(_heading(state)), table, Text("Ctrl-C ends this", style="dim"))

    with Live(shown(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(shown(), refresh=True)


@click.group(invoke_without_command=True)
@click.option("--all", "everybody", is_flag=True, help="Those of every owner; needs the scope admin.")
@json_option
@click.pass_context
def sessions(ctx: click.Context, everybody: bool, as_json: bool) -> None:
    """List sessions, or end some."""
    if ctx.invoked_subcommand is not None:
        ctx.obj = everybody
        return
    listed = _sessions(everybody)
    if as_json:
        print_json({"sessions": listed})
        return
    columns, rows = list(COLUMNS), [_row(session) for session in listed]
    if everybody:
        columns.insert(1, "owner")
        for row, session in zip(rows, listed, strict=True):
            row.insert(1, session.get("owner", ""))
    write(columns, rows, _count(len(listed), "of all owners" if everybody else "of yours"))


@sessions.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--all", "everybody", is_flag=True, help="Those of any owner; needs the scope admin.")
@json_option
@click.pass_context
def end(ctx: click.Context, ids: tuple[str, ...], everybody: bool, as_json: bool) -> None:
    """End sessions: everything that they hold is freed.

    An ID may be cut short as long as it begins one session alone: the page shows the first eight letters
    (behind the name of its node, in a cluster).
    """
    everybody = everybody or ctx.obj
    route = routes.ADMIN_SESSION if everybody else routes.SESSION
    open_ids = [session["id"] for session in _sessions(everybody)]
    whole_ids = list(dict.fromkeys(_whole_id(prefix, open_ids, everybody) for prefix in ids))
    for session_id in whole_ids:
        try:
            connection.transport().call("DELETE", route.format(id=session_id))
        except NotFoundError:  # it ended since it was listed
            raise _no_such_session(session_id, everybody) from None
        if not as_json:
            print(f"ended {session_id}")
    if as_json:
        print_json({"ended": whole_ids})


def _whole_id(prefix: str, open_ids: list[str], everybody: bool) -> str:
    """The id of the one open session that the prefix means."""
    candidates = [prefix] if prefix in open_ids else [name for name in open_ids if prefix and name.startswith(prefix)]
    if not candidates:
        raise _no_such_session(prefix, everybody)
    if len(candidates) > 1:
        names = ", ".join(candidates[:4]) + (", …" if len(candidates) > 4 else "")
        raise BadRequestError(
            f"session {prefix!r}: expected what begins one id, got what begins {names}: write more letters of it"
        )
    return candidates[0]


def _no_such_session(name: str, everybody: bool) -> NotFoundError:
    whose, listing = ("any owner", "opbox sessions --all") if everybody else ("yours", "opbox sessions")
    return NotFoundError(f"session {name!r}: expected an open one of {whose}, got an id that is none: see {listing}")


DAY_COLUMNS = (
    "day",
    "worker time",
    "waited",
    "runs",
    "requests",
    "refused",
    "received",
    "sent",
    "sessions",
    "peak memory",
    "storage",
)


def _day_row(day: dict[str, Any]) -> list[object]:
    return [
        day["day"],
        seconds_text(day["worker_seconds"]),
        seconds_text(day["queue_seconds"]),
        day["runs"],
        day["requests"],
        day["refused"],
        bytes_text(day["received_bytes"]),
        bytes_text(day["sent_bytes"]),
        day["sessions"],
        bytes_text(day["peak_bytes"]),
        bytes_text(day["storage_bytes"]),
    ]


def _of_quota(used: float, quota: float, text: Callable[[float], str]) -> str:
    return f"{text(used)} of {text(quota)}" if quota else text(used)


def _present(owner: dict[str, Any]) -> str:
    now, quotas = owner["now"], owner["quotas"]
    time_used = _of_quota(now["worker_seconds"], quotas["worker_seconds"], seconds_text)
    return (
        f"{owner['owner']}: {time_used} of workers' time today, {now['sessions']} of {quotas['sessions']} sessions, "
        f"{_of_quota(now['memory_bytes'], quotas['memory_bytes'], bytes_text)} of memory"
    )


@click.command()
@click.option("--all", "everybody", is_flag=True, help="That of every owner; needs the scope admin.")
@click.option("--days", type=click.IntRange(1, 31), default=7, show_default=True, metavar="N", help="The last N days.")
@json_option
def usage(everybody: bool, days: int, as_json: bool) -> None:
    """Show your use on each of the last days, and your quotas."""
    answer = connection.transport().call("GET", routes.ADMIN_USAGE if everybody else routes.USAGE).header
    owners: list[dict[str, Any]] = answer["owners"] if everybody else [answer]
    first = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()
    owners = [{**owner, "days": [day for day in owner["days"] if day["day"] >= first]} for owner in owners]
    if as_json:
        print_json({"owners": owners} if everybody else owners[0])
        return
    if not everybody:
        write(DAY_COLUMNS, [_day_row(day) for day in owners[0]["days"]], _present(owners[0]))
        return
    rows = [[owner["owner"], *_day_row(day)] for owner in owners for day in owner["days"]]
    write(("owner", *DAY_COLUMNS), rows, f"{len(owners)} owner{'' if len(owners) == 1 else 's'}")


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = (op.name for op in _schema.operators())
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


@click.command()
@click.argument("name", required=False, shell_complete=_names)
@json_option
def ops(name: str | None, as_json: bool) -> None:
    """List the operators, or describe one by its NAME or alias."""
    if name is None or _schema.find(name) is None:
        # Those of packages and of a server's own files.
        connection.refresh_operators()
    if name is None:
        listed = [(op.name, op.doc.split(". ")[0]) for op in _schema.operators()]
        if as_json:
            print_json({"operators": [{"name": op, "doc": doc} for op, doc in listed]})
        else:
            for op_name, doc in listed:
                print(f"{op_name:34} {doc}"[:120].rstrip())
        return
    op = _schema.get(name)
    if as_json:
        description: Any = {"name": op.name, "aliases": op.aliases, "doc": op.doc, "inputs": op.tensors}
        print_json(description | {"required": op.required, "params": op.params})
        return
    print(f"{op.name} (also {', '.join(op.aliases)})\n" if op.aliases else f"{op.name}\n")
    print(docstring(op, op.name))
