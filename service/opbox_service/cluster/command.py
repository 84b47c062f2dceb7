"""`opbox cluster`: several machines as one.

opbox cluster start --head               the first machine; prints the line for the others
opbox cluster join 192.0.2.7             each other machine
opbox cluster status                     nodes, devices, sessions and models
opbox cluster drain NODE                 before a machine is taken away
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from opbox.byte_counts import bytes_text
from opbox.cli.dist import run as dist_run
from opbox.cli.output import json_option, print_json, write
from opbox_protocol.errors import BadRequestError, MXNetError

from ..settings import Settings
from ..validation import explain
from .machine_record import read_record, remove_record
from .ray_start import RayPorts, check_ray

__all__ = ["cluster", "main"]

STOP_S = 120.0
COLUMNS = ("node", "state", "address", "device", "free", "of", "sessions", "waiting", "models")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cluster() -> None:
    """Serve on several machines as one, by Ray; needs opbox-service[cluster].

    Settings of a machine's server are the variables OPBOX_… of start or join there.
    """


_node_port = click.option(
    "--node-port", type=click.IntRange(0, 65_535), default=8002, show_default=True, help="Port of its server; 0: free."
)
_ray_ports = click.option(
    "--ray-ports",
    type=int,
    default=6379,
    show_default=True,
    metavar="FIRST",
    help="Ray: FIRST to FIRST+410; 0: any.",
)
_cpus = click.option("--cpus", type=click.IntRange(0), metavar="N", help="CPUs for other jobs of Ray; by default all.")
_name = click.option("--name", default="", help="Name of its node; by default the machine's.")


@cluster.command()
@click.option("--head", is_flag=True, help="Start a new cluster, whose head this machine is.")
@click.option("--host", help="Address of this machine; by default OPBOX_HOST, or the one that others reach.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of the gateway; by default OPBOX_PORT, or 8000.")
@_node_port
@_ray_ports
@_cpus
@_name
def start(
    head: bool, host: str | None, port: int | None, node_port: int, ray_ports: int, cpus: int | None, name: str
) -> None:
    """Start a cluster, and serve until Ctrl-C: Ray's head, the controller, the gateway, and this machine's server."""
    if not head:
        raise click.UsageError("expected --head, got none: another machine joins a cluster by opbox cluster join")
    check_ray()
    from .machine import start_head
    from .ray_start import own_address

    settings = _settings(**({"port": port} if port is not None else {}))
    if host or "host" not in settings.model_fields_set:
        settings = settings.model_copy(update={"host": host or own_address()})
    start_head(settings, node_port, RayPorts(ray_ports), cpus, name)


@cluster.command()
@click.argument("address")
@click.option("--host", help="Address of this machine; by default the one that others reach.")
@_node_port
@_ray_ports
@_cpus
@_name
def join(address: str, host: str | None, node_port: int, ray_ports: int, cpus: int | None, name: str) -> None:
    """Serve in the cluster whose head is at ADDRESS, until Ctrl-C; RAY_AUTH_TOKEN has its token."""
    check_ray()
    if not os.environ.get("RAY_AUTH_TOKEN"):
        raise BadRequestError(
            "RAY_AUTH_TOKEN: expected the cluster's token, got none: copy the line that opbox cluster start --head "
            "printed"
        )
    from .machine import join_cluster

    join_cluster(address, host or os.environ.get("OPBOX_HOST"), node_port, RayPorts(ray_ports), cpus, name)


@cluster.command("gateway-config")
@click.argument("proxy", type=click.Choice(["haproxy", "envoy"]))
@click.option("--port", type=click.IntRange(1, 65_535), default=8000, show_default=True, help="Port to listen on.")
def gateway_config(proxy: str, port: int) -> None:
    """Print a configuration of HAProxy or Envoy for this cluster."""
    from .gateway.configurations import envoy_configuration, haproxy_configuration

    nodes = {node["node"]: node["url"] for node in _ask("status")["nodes"] if node["state"] != "lost"}
    print((haproxy_configuration if proxy == "haproxy" else envoy_configuration)(nodes, port), end="")


@cluster.command()
@json_option
def status(as_json: bool) -> None:
    """Show the nodes of this machine's cluster, their devices, sessions and models."""
    state = _ask("status")
    if as_json:
        print_json(state)
        return
    rows: list[list[object]] = []
    for node in state["nodes"]:
        for device, memory in (node.get("devices") or {"": None}).items():
            rows.append(
                [
                    node["node"],
                    node["state"],
                    node["url"],
                    device,
                    bytes_text(memory["free"]) if memory else "",
                    bytes_text(memory["bytes"]) if memory else "",
                    node.get("sessions", ""),
                    node.get("queue", ""),
                    ", ".join(node.get("models", ())),
                ]
            )
    ready = sum(node["state"] == "ready" for node in state["nodes"])
    waiting = sum(state["waiting"].values())
    write(COLUMNS, rows, f"{ready} node{'' if ready == 1 else 's'} ready, {waiting} sessions wait for a place")
    if state.get("tokens"):
        print(f"tokens: {state['tokens']}")
    for node in state["nodes"]:
        if node.get("failure"):
            print(f"{node['node']}: {node['failure']} (log: {node['log']})")
    for model, nodes in state["models"].items():
        print(f"model {model}: {len(nodes)} replica{'' if len(nodes) == 1 else 's'} on {', '.join(nodes)}")


@cluster.command()
@click.argument("node")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return once it has no session left.")
def drain(node: str, wait: bool) -> None:
    """Place no new sessions on NODE, so that its machine can be taken away when it has none left."""
    _ask("drain", node)
    while wait:
        rows = [row for row in _ask("status")["nodes"] if row["node"] == node]
        state = rows[0]["state"] if rows else "gone"
        if state not in ("ready", "draining"):
            print(f"{node} is {state}")
            return
        print(f"{node} is draining: {rows[0]['sessions']} sessions left", file=sys.stderr, flush=True)
        time.sleep(2)
    print(f"{node} is draining")


@cluster.command()
def stop() -> None:
    """End what start or join runs on this machine, after what it has accepted; on the head, the whole cluster."""
    record = read_record()
    try:
        os.kill(record.pid, signal.SIGTERM)
    except ProcessLookupError:
        remove_record(record.pid)
        raise BadRequestError(
            f"opbox cluster: expected process {record.pid} of this machine's cluster, got none: it has ended"
        ) from None
    until = time.monotonic() + STOP_S
    while time.monotonic() < until:
        if _has_ended(record.pid):
            print("stopped")
            return
        time.sleep(0.2)
    raise BadRequestError(f"opbox cluster: expected an end within {STOP_S:g} s, got none: process {record.pid} runs")


def _has_ended(pid: int) -> bool:
    """Whether a process has ended, also one that its parent has not waited for yet."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:  # it ended meanwhile, or this system has no /proc
        return False


def _ask(method: str, *arguments: object) -> Any:
    """Ask the controller of this machine's cluster."""
    check_ray()
    from .machine import call_controller
    from .ray_start import connect, reach

    if "ray" not in sys.modules:  # which reads the token's variables when it is imported
        if os.environ.get("RAY_ADDRESS"):
            connect("auto", os.environ.get("RAY_AUTH_TOKEN", ""))
        else:
            record = read_record()
            reach(record.address)
            connect(record.address, record.ray_token)
    return call_controller(method, *arguments)


def _settings(**options: Any) -> Settings:
    try:
        return Settings(**options)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        raise BadRequestError(explain(item, Settings, item["loc"]).partition(", got ")[0]) from None


cluster.add_command(dist_run)


def main(words: Sequence[str]) -> int:
    """Run `opbox cluster`; the exit status, with the reason of a failure on standard error.

    Args:
        words: options, without the command's name.
    """
    try:
        return int(cluster.main(list(words), prog_name="opbox cluster", standalone_mode=False) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        text = " ".join(error.format_message().split()).rstrip(".")
        print(f"opbox cluster: {text}: see opbox cluster --help", file=sys.stderr)
        return 2
    except MXNetError as error:
        print(f"opbox cluster: {str(error).removeprefix('opbox cluster: ')}", file=sys.stderr)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
