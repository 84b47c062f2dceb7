"""Starts Ray on this machine: the head of a cluster, or a machine of one, with token authentication.

Ray listens on all interfaces, whatever address it gets; docs/security.md says which ports to close to others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opbox_protocol.errors import BadRequestError, NotReadyError

__all__ = ["MARK", "NAMESPACE", "RayPorts", "RayProcess", "check_ray", "connect", "own_address"]

NAMESPACE = "opbox"
MARK = "opbox"
"""Ray's resource of machines that `opbox cluster` started: opbox serves on these."""
START_S = 180.0
"""Maximum seconds of Ray's start: a few, on a busy machine a minute."""
OBJECT_STORE_BYTES = 80 << 20
"""Ray's least: no tensors go through it."""
WORKER_PORTS = 400
SETTINGS: dict[str, Any] = {
    # Ray's own processes have to answer within these; by default a raylet ends itself when they took 30 s to start.
    "agent_register_timeout_ms": 300_000,
    "worker_register_timeout_seconds": 300,
    "raylet_start_wait_time_s": 120,
    # A machine counts as dead after 10 unanswered looks, one each second: a busy one may miss some.
    "health_check_initial_delay_ms": 10_000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 10,
    # The server has limits of memory of its own; Ray's would kill the node for what one session took.
    "memory_monitor_refresh_ms": 0,
    # No process waits for work that opbox does not send through Ray.
    "enable_worker_prestart": False,
}
"""Settings of Ray, which the head hands to all machines."""


def check_ray() -> None:
    """Say how to install Ray where it is not installed.

    Raises:
        BadRequestError: it is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise BadRequestError(
            "opbox cluster: expected Ray, got a Python without it: pip install 'opbox-service[cluster]'"
        )


@dataclass(frozen=True, slots=True)
class RayPorts:
    """Ray's ports on a machine: consecutive ones, so that a firewall can have a rule for them.

    Attributes:
        first: Ray's head listens here; the next ones are those of a machine's own services, and 400 of its workers.
            0: all are chosen by the system, but the head's.

    Raises:
        BadRequestError: the range does not fit.

    Example:
        >>> RayPorts(6379).last
        6789
    """

    first: int = 6379

    def __post_init__(self) -> None:
        if self.first and not 1024 <= self.first <= 65_535 - WORKER_PORTS - 10:
            raise BadRequestError(f"ray ports: expected 0, or 1024 to {65_535 - WORKER_PORTS - 10}, got {self.first}")

    @property
    def last(self) -> int:
        """The last port of the range."""
        return self.first + 10 + WORKER_PORTS

    def options(self) -> list[str]:
        """Return the options of `ray start` for a machine's own services; none where the system chooses."""
        if not self.first:
            return []
        names = (
            "node-manager-port",
            "object-manager-port",
            "runtime-env-agent-port",
            "dashboard-agent-grpc-port",
            "dashboard-agent-listen-port",
            "metrics-export-port",
        )
        own = [f"--{name}={self.first + number}" for number, name in enumerate(names, 1)]
        return [*own, f"--min-worker-port={self.first + 10}", f"--max-worker-port={self.last}"]


def own_address(host: str | None = None) -> str:
    """Return the address by which other machines reach this one; `host` if it is one."""
    if host and host not in ("0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the system says which address it would send from
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class RayProcess:
    """Ray on this machine, as a child of this process.

    Args:
        token: that all machines of the cluster have.
        folder: for Ray's own files and its log.
        settings: variables of the environment of all that Ray starts here, such as OPBOX_DEVICES.

    Example:
        >>> ray = RayProcess(new_ray_token(), Path("/tmp/ray"))           # doctest: +SKIP
        >>> ray.start_head("192.0.2.7", RayPorts(), None, "a")  # doctest: +SKIP
    """

    def __init__(self, token: str, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._token = token
        self._folder = folder
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def log(self) -> Path:
        """The file of what `ray start` prints."""
        return self._folder / "ray.log"

    def start_head(self, host: str, ports: RayPorts, cpus: int | None, name: str) -> None:
        """Start the head of a new cluster on this machine.

        Args:
            host: the address of this machine.
            ports: of Ray.
            cpus: number of CPUs that Ray's jobs may use here; None: all.
            name: of this machine in Ray.

        Raises:
            NotReadyError: it does not start.
        """
        port = ports.first or free_port()
        self.address = f"{host}:{port}"
        options = ["--head", f"--port={port}", f"--system-config={json.dumps(SETTINGS)}", "--include-dashboard=false"]
        self._start(host, [f"--node-name={name}", *options, *_cpus(cpus), *ports.options()])

    def join(self, address: str, host: str, ports: RayPorts, cpus: int | None, name: str) -> None:
        """Join the cluster whose head is at `address`.

        Raises:
            BadRequestError: the token is not the cluster's.
            NotReadyError: the head is not reached, or Ray does not start here.
        """
        if ":" not in address:
            address = f"{address}:{RayPorts().first}"
        reach(address)
        self.address = address
        self._start(host, [f"--node-name={name}", f"--address={address}", *_cpus(cpus), *ports.options()])

    @property
    def runs(self) -> bool:
        """Whether Ray runs here."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End Ray here, with all that it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self, host: str, options: list[str]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host}"),
            *(f"--resources={json.dumps({MARK: 1})}", f"--object-store-memory={OBJECT_STORE_BYTES}"),
            *("--disable-usage-stats", "--include-log-monitor=false", *options),
        ]
        environment = {**os.environ, **self._settings, **ray_environment(self._token)}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + START_S
        while "Ray runtime started" not in (text := self.log.read_text(errors="replace")):
            if not self.runs:
                raise _explained(text, self.address, self.log)
            if time.monotonic() > until:
                self.stop()
                raise NotReadyError(f"ray: expected a start within {START_S:g} s, got none: {self.log} says more")
            time.sleep(0.1)


def ray_environment(token: str) -> dict[str, str]:
    """Return the variables that have Ray use a token; "" for a Ray without."""
    ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    return {**ours, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else ours


def connect(address: str, token: str = "") -> None:
    """Connect this process to a cluster, of which this machine is one.

    Args:
        address: of the head, or "auto" for the cluster that this machine is in.
        token: of Ray; "" for that of the environment, if any.

    Raises:
        NotReadyError: there is no such cluster, or not on this machine.
    """
    check_ray()
    os.environ.update(ray_environment(token))
    import ray

    until = time.monotonic() + START_S / 3
    while True:
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:
            # Of a head that has just started: it does not know the machine yet.
            if type(error).__name__ == "AuthenticationError" or time.monotonic() > until or address == "auto":
                raise NotReadyError(
                    f"Ray at {address}: expected a cluster that this machine is in, got {_line(error)}"
                ) from None
            time.sleep(0.5)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _cpus(number: int | None) -> list[str]:
    return [] if number is None else [f"--num-cpus={number}"]


def reach(address: str) -> None:
    """Raise NotReadyError unless something listens at a head's address: Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except ValueError:
        raise BadRequestError(f"ADDRESS: expected HOST or HOST:PORT, got {address!r}") from None
    except OSError as error:
        raise NotReadyError(
            f"ray at {address}: expected the head of a cluster, got {error}: does opbox cluster start --head run "
            "there, and does a firewall let this machine through?"
        ) from None


def _explained(text: str, address: str, log: Path) -> Exception:
    """Return the error for what a `ray start` printed that has ended."""
    if "InvalidAuthToken" in text or "AuthenticationError" in text:
        return BadRequestError(
            f"ray at {address}: expected the cluster's token in RAY_AUTH_TOKEN, got another or none: copy the line "
            "that opbox cluster start --head printed"
        )
    lines = [line for line in text.splitlines() if line.strip() and "INFO" not in line]
    return NotReadyError(f"ray: expected a start, got {lines[-1].strip() if lines else 'nothing'}: {log} says more")
