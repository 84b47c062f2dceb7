"""A machine of a cluster: Ray here, and on the head the controller and the gateway; until a signal."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opbox import token_store
from opbox_protocol.errors import NotReadyError

from ..settings import SECRETS, Settings
from .controller_options import ControllerOptions
from .machine_record import MachineRecord, check_no_head, new_ray_token, remove_record, write_record
from .node_actor import CONTROLLER
from .owner_tokens import tokens_file, usual_quotas
from .ray_start import NAMESPACE, RayPorts, RayProcess, check_ray, connect, own_address, ray_environment

__all__ = ["call_controller", "join_cluster", "serve_on_ray", "start_head"]

GATEWAY = "opbox_service.cluster.gateway"
SERVING_S = 300.0
"""Maximum seconds until this machine's server serves."""
LOOK_S = 1.0


def start_head(settings: Settings, node_port: int, ports: RayPorts, cpus: int | None, name: str) -> None:
    """Start a cluster whose head this machine is, and run until a signal.

    Args:
        settings: host and port of the gateway, and who may use it; this machine's server has the others.
        node_port: of this machine's server.
        ports: of Ray.
        cpus: number of CPUs that Ray's jobs may use here; None: all.
        name: of this machine's node.
    """
    check_ray()
    check_no_head()
    folder = cluster_folder(settings)
    tokens, new = tokens_file(settings, folder)
    token = os.environ.get("RAY_AUTH_TOKEN") or new_ray_token()
    own = own_address(settings.host)
    plain = {"OPBOX_SSL_CERTFILE": "", "OPBOX_SSL_KEYFILE": "", "OPBOX_SSL_KEYFILE_PASSWORD": ""}  # the gateway's
    ray_process = RayProcess(token, folder, _node_variables(settings.host, node_port) | plain)
    with _ended_by_signal() as ended:
        ray_process.start_head(own, ports, cpus, node_name := _node_name(name))
        try:
            connect(ray_process.address, token)
            ended.catch()
            options = ControllerOptions(
                str(folder), str(tokens), usual_quotas(settings), settings=gateway_variables(settings.host)
            )
            begin_controller(options, _ray_id(node_name))
            node = _await_node(_ray_id(node_name), ray_process, ended)
            gateway = GatewayProcess(settings, ray_process.address, token, tokens)
            url = gateway.start() or node["url"]
            write_record(MachineRecord(ray_process.address, token, os.getpid(), url))
            if new:
                token_store.write(url, new)
            _announce(url, new, f"RAY_AUTH_TOKEN={token} opbox cluster join {ray_process.address}")
            _watch(ended, ray_process, gateway)
            print("opbox cluster: stopping, after what has been accepted", file=sys.stderr, flush=True)
            gateway.stop()
            end_controller()
        finally:
            remove_record(os.getpid())
            leave_ray()
            ray_process.stop()


def join_cluster(address: str, host: str | None, node_port: int, ports: RayPorts, cpus: int | None, name: str) -> None:
    """Have this machine serve in the cluster whose head is at `address`, and run until a signal."""
    check_ray()
    settings = Settings()
    folder = cluster_folder(settings)
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    ray_process = RayProcess(token, folder, _node_variables(host, node_port))
    with _ended_by_signal() as ended:
        ray_process.join(address, own_address(host), ports, cpus, node_name := _node_name(name))
        try:
            connect(ray_process.address, token)
            ended.catch()
            ray_id = _ray_id(node_name)
            node = _await_node(ray_id, ray_process, ended)
            write_record(MachineRecord(ray_process.address, token, os.getpid()))
            print(f"opbox node {node['node']} serving on {node['url']}", flush=True)
            _watch(ended, ray_process, None)
            print("opbox cluster: leaving, after what has been accepted", file=sys.stderr, flush=True)
            call_controller("leave", ray_id)
        finally:
            remove_record(os.getpid())
            leave_ray()
            ray_process.stop()


def serve_on_ray(settings: Settings) -> None:
    """Serve on every node of the Ray cluster that this machine is in (`opbox serve --cluster auto`), until a signal."""
    check_ray()
    check_no_head()
    folder = cluster_folder(settings)
    tokens, new = tokens_file(settings, folder)
    with _ended_by_signal() as ended:
        connect("auto")
        ended.catch()
        import ray

        ray_id = ray.get_runtime_context().get_node_id()
        variables = settings_variables(settings) | gateway_variables(settings.host)
        begin_controller(
            ControllerOptions(str(folder), str(tokens), usual_quotas(settings), every_node=True, settings=variables),
            ray_id,
        )
        node = _await_node(ray_id, None, ended)
        address = ray.get_runtime_context().gcs_address
        token = os.environ.get("RAY_AUTH_TOKEN", "")
        gateway = GatewayProcess(settings, address, token, tokens)
        url = gateway.start() or node["url"]
        write_record(MachineRecord(address, token, os.getpid(), url))
        try:
            if new:
                token_store.write(url, new)
            _announce(url, new, "")
            _watch(ended, None, gateway)
            gateway.stop()
            end_controller()
        finally:
            remove_record(os.getpid())


def begin_controller(options: ControllerOptions, ray_id: str) -> Any:
    """Start the controller's actor on the Ray node `ray_id`, unless the cluster has one; its handle."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from .controller_actor import ControllerActor

    actor = (
        ray.remote(ControllerActor)
        .options(
            name=CONTROLLER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=1000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray_id, soft=False),
        )
        .remote(options)
    )
    ray.get(actor.begin.remote(), timeout=SERVING_S)
    return actor


def call_controller(method: str, *arguments: object, timeout_s: float = 120.0) -> Any:
    """Call the controller's actor from a process that is connected.

    Raises:
        NotReadyError: the cluster has none, or it does not answer.
    """
    import ray

    try:
        actor = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        raise NotReadyError("opbox cluster: expected a controller in Ray's cluster, got none: start it anew") from None
    try:
        return ray.get(getattr(actor, method).remote(*arguments), timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from None
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise NotReadyError(
            f"opbox cluster: controller: expected an answer, got {type(error).__name__}: try again"
        ) from None


def leave_ray() -> None:
    """Disconnect this process, which Ray would end with the cluster otherwise."""
    import ray

    ray.shutdown()


class GatewayProcess:
    """The gateway's process, started again when it dies; nothing where this opbox has none.

    Args:
        settings: its host, port and certificate.
        address, token: of Ray.
        tokens: the tokens file, by which it knows owners.
    """

    def __init__(self, settings: Settings, address: str, token: str, tokens: Path) -> None:
        self._command = [sys.executable, "-m", GATEWAY]
        own = {key: value for key, value in os.environ.items() if key not in ("OPBOX_TOKEN", "OPBOX_TOKENS")}
        self._environment = (
            own
            | ray_environment(token)
            | {
                "RAY_ADDRESS": address,
                "OPBOX_TOKENS_FILE": str(tokens),
                "OPBOX_HOST": settings.host,
                "OPBOX_PORT": str(settings.port),
                **_certificate_variables(settings),
            }
        )
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start it, again on the port that it had; its URL, or "" where there is none.

        Raises:
            NotReadyError: it ended at once.
        """
        if importlib.util.find_spec(GATEWAY) is None:
            return ""
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotReadyError(f"gateway: expected a start, got status {self._process.wait()}")
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        url = line.split()[-1]
        self._environment["OPBOX_PORT"] = url.rpartition(":")[2]
        return url

    @property
    def has_died(self) -> bool:
        """Whether it was started, and does not run."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End it, after what it has accepted."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def settings_variables(settings: Settings) -> dict[str, str]:
    """Return the variables that give nodes' servers the same settings, but those of the gateway and of owners.

    Example:
        >>> settings_variables(Settings(device="gpu", port=8080))
        {'OPBOX_DEVICE': 'gpu'}
    """
    gateways = SECRETS | {"host", "port", "token_file", "tokens_file", "cluster", "node", "ssl_certfile", "ssl_keyfile"}
    rows = settings.model_dump(mode="json", include=settings.model_fields_set - gateways)
    return {f"OPBOX_{name.upper()}": _text(value) for name, value in rows.items() if value is not None}


def gateway_variables(host: str) -> dict[str, str]:
    """Return the variables by which nodes' servers trust the gateway, which is on the machine of this address.

    Example:
        >>> gateway_variables("192.0.2.7")
        {'OPBOX_TRUSTED_PROXIES': '["127.0.0.1", "::1", "192.0.2.7"]'}
    """
    usual = Settings.model_fields["trusted_proxies"].default
    return {"OPBOX_TRUSTED_PROXIES": json.dumps([*usual, *_addresses(own_address(host), usual)])}


def _certificate_variables(settings: Settings) -> dict[str, str]:
    """The variables that name the certificate of settings."""
    rows = {name: getattr(settings, name) for name in ("ssl_certfile", "ssl_keyfile")}
    if settings.ssl_keyfile_password is not None:
        rows["ssl_keyfile_password"] = settings.ssl_keyfile_password.get_secret_value()
    return {f"OPBOX_{name.upper()}": str(value) for name, value in rows.items() if value is not None}


def _addresses(host: str, known: Sequence[str]) -> list[str]:
    """The addresses of a host, in order, without those that are known."""
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(row[4][0]).partition("%")[0] for row in rows} - set(known))


def _text(value: Any) -> str:

    return value if isinstance(value, str) else json.dumps(value)


def cluster_folder(settings: Settings) -> Path:
    """Return the folder of a cluster's files on this machine: in the state directory, if there is one."""
    return (settings.state_dir or token_store.make_folder()) / "cluster"


def _node_variables(host: str | None, port: int) -> dict[str, str]:
    listens = {"OPBOX_HOST": host} if host else {}
    return {"OPBOX_TOKEN": "", "OPBOX_TOKENS": "", "OPBOX_PORT": str(port), **listens}


def _node_name(name: str) -> str:
    """The name of this machine in Ray: no two machines have the same."""
    return f"{name or os.uname().nodename.partition('.')[0]}/{secrets.token_hex(8)}"


def _ray_id(node_name: str) -> str:
    import ray

    until = time.monotonic() + SERVING_S
    while time.monotonic() < until:
        for row in ray.nodes():
            if row["NodeName"] == node_name:
                return str(row["NodeID"])
        time.sleep(0.2)
    raise NotReadyError("ray: expected this machine in the cluster, got none: try again")


def _await_node(ray_id: str, ray_process: RayProcess | None, ended: threading.Event) -> dict[str, Any]:
    """Wait until the server of a Ray node serves; its row of the status."""
    until = time.monotonic() + SERVING_S
    failure = "it does not answer"
    while time.monotonic() < until and not ended.is_set() and (ray_process is None or ray_process.runs):
        for row in call_controller("status")["nodes"]:
            if row.get("ray_node") == ray_id:
                if row["url"]:
                    return dict(row)
                failure = row["failure"]
                if "ended with status" in failure:
                    raise NotReadyError(f"node {row['node']}: {failure}")
        ended.wait(0.3)
    raise NotReadyError(f"opbox cluster: expected this machine's server to serve, got none: {failure}")


def _announce(url: str, new: str, line: str) -> None:
    print(f"opbox cluster serving on {url}", flush=True)
    print(f"token: {new or 'as configured'}", flush=True)
    if line:
        print(f"on each other machine: {line}", flush=True)


def end_controller() -> None:
    """End all nodes' servers, and then the controller's actor, for which Ray's own end would wait."""
    import ray

    call_controller("stop")
    ray.kill(ray.get_actor(CONTROLLER, namespace=NAMESPACE))


class Ended(threading.Event):
    """An event that SIGINT and SIGTERM set, in place of ending this process."""

    def catch(self) -> None:
        """Take the signals, from now on: Ray takes them when it connects."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.set())


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[Ended]:
    """The signals' event; afterwards they do what they did before."""
    ended = Ended()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ended.catch()
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(ended: threading.Event, ray_process: RayProcess | None, gateway: GatewayProcess | None) -> None:
    """Wait for a signal; a gateway that dies is started again, until it serves.

    Raises:
        NotReadyError: Ray has ended here.
    """
    while not ended.wait(LOOK_S):
        if gateway is not None and gateway.has_died:
            try:
                gateway.start()
            except NotReadyError as error:
                print(f"opbox cluster: {error}: trying again", file=sys.stderr, flush=True)
        if ray_process is not None and not ray_process.runs:
            raise NotReadyError(f"ray: expected to run until a stop, got its end: {ray_process.log} says more")
