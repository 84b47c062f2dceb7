"""Settings: every one is an environment variable OPBOX_<NAME> too, and most an option of `opbox serve`.

    OPBOX_HOST=0.0.0.0 OPBOX_TOKEN=… OPBOX_MAX_BODY_BYTES=268435456 opbox serve

Structured ones are JSON: OPBOX_TOKENS='[{"name": "ann", "token": "…", "scopes": ["run"]}]', and so is the file that
OPBOX_TOKENS_FILE names. A variable OPBOX_… that is no setting stops the server at its start (`environment`).
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .owner_terms import DEFAULT_OWNER, SCOPES, Scope, Token
from .session_ids import NODE_PATTERN

__all__ = ["SECRETS", "Settings", "cores"]

SECRETS = frozenset({"token", "tokens", "ssl_keyfile_password"})
"""Settings that are no options, as everybody on the machine can read a program's options, and that no worker gets."""
GIB = 1 << 30
MAX_WORKERS = 64


def _expanded(path: Path) -> Path:
    """An absolute path, `~` being the user's home folder."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("a path without ~, as nothing says what this user's home folder is") from None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


class Settings(BaseSettings):
    """The server's settings, with their defaults."""

    model_config = SettingsConfigDict(env_prefix="OPBOX_", env_ignore_empty=True, extra="ignore", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it.")
    grpc_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for the Open Inference Protocol by gRPC; 0 takes a free one and prints it; empty: none.",
    )
    reuse_port: bool = Field(
        default=False,
        description="Share the port with another server (SO_REUSEPORT), such as the next one at a restart.",
    )
    ssl_certfile: Path | None = Field(
        default=None,
        description="PEM file with the certificate for TLS, and those of its authorities; read again when it changes.",
    )
    ssl_keyfile: Path | None = Field(
        default=None, description="PEM file with the certificate's private key; empty: it is in ssl_certfile."
    )
    ssl_keyfile_password: SecretStr | None = Field(
        default=None, description="The password of the private key, where it is encrypted."
    )
    token: SecretStr | None = Field(
        default=None, min_length=8, description="A token with every scope; generated and printed if you give no token."
    )
    tokens: tuple[Token, ...] = Field(default=(), description="Further tokens with their owners and scopes.")
    token_file: Path | None = Field(default=None, description="File with that token; read again when it changes.")
    tokens_file: Path | None = Field(
        default=None, description="JSON file with further tokens, and their owners' quotas; read again when it changes."
    )
    quota_shares_file: Path | None = Field(
        default=None,
        description="JSON file with this server's shares of owners' quotas, where several servers are one cluster; "
        "read again when it changes.",
    )
    oidc_issuer: str | None = Field(
        default=None,
        min_length=1,
        description="Issuer of OIDC's tokens, as in their claim iss; without it no such token is taken.",
    )
    oidc_audience: str | None = Field(
        default=None, min_length=1, description="This server's name in the claim aud of OIDC's tokens."
    )
    oidc_jwks: str | None = Field(
        default=None, min_length=1, description="The issuer's keys (JWKS): an https URL, or a file."
    )
    oidc_owner_claim: str = Field(
        default="sub", min_length=1, description="Claim that names the owner; a.b is b inside of a."
    )
    oidc_owner_prefix: str = Field(
        default="oidc:",
        pattern=r"^[A-Za-z0-9._-]{1,31}:$",
        description="Beginning of the names of OIDC's owners, which no other owner's name may have.",
    )
    oidc_scope_claim: str = Field(
        default="scope", min_length=1, description="Claim with the scopes, groups or roles: a list, or words in a text."
    )
    oidc_scopes: dict[str, frozenset[Scope]] = Field(
        default={},
        description="Scopes that a value of that claim gives; empty: opbox:run gives run, and so on.",
    )
    oidc_leeway_s: float = Field(
        default=30, ge=0, le=300, description="Seconds that the issuer's clock may differ from this machine's."
    )
    oidc_refresh_s: float = Field(
        default=300, gt=0, le=86_400, description="Seconds between two looks at the issuer's keys."
    )
    oidc_stale_s: float = Field(
        default=86_400, gt=0, description="Seconds that keys are used while the issuer cannot be reached."
    )

    node: str = Field(
        default="",
        pattern=rf"^({NODE_PATTERN})?$",
        description="This server's name in a cluster, 1 to 16 of a-z and 0-9: its sessions' ids begin with it.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Allowed names in a request's Host, such as box.example.org, *.example.org or *; "
        "empty: this machine's own names on loopback, any name otherwise.",
    )
    root_path: str = Field(
        default="",
        description="Path under which a proxy has the server and which it does not take off, such as /opbox.",
    )
    cors_origins: tuple[str, ...] = Field(
        default=(),
        description="Origins whose pages may call the server, such as https://example.org, or *; empty: none.",
    )
    trusted_proxies: tuple[str, ...] = Field(
        default=("127.0.0.1", "::1"),
        description="Addresses or networks of reverse proxies: their X-Forwarded-For is believed, and "
        "max_connections_per_address does not apply to them.",
    )

    group_host: str = Field(
        default="",
        description="Own address, and the network of the other servers, where sessions exchange arrays with theirs, "
        "such as 10.0.0.5/24; empty: they may not.",
    )
    group_ports: str = Field(
        default="",
        description="Ports of group_host where sessions wait for the others, such as 20000-20099; empty: any free one.",
    )

    group_nccl: bool = Field(
        default=True,
        description="Add up arrays of GPUs by NCCL where all sessions of a group can; 0: through the machine's memory.",
    )

    page: bool = Field(default=True, description="Serve the page for browsers at /.")

    cluster: Literal["auto"] | None = Field(
        default=None,
        description="auto: serve on every node of the Ray cluster that this machine is in; empty: here alone.",
    )

    isolation: Literal["process", "none"] = Field(
        default="process" if hasattr(os, "memfd_create") else "none",
        description="process: device work in worker processes; none: all in one process.",
    )
    workers: int | Literal["auto"] = Field(
        default=1,
        description="Worker processes that share sessions among them; auto: one for each owner while memory allows.",
    )
    """Not auto by default: it costs a process (59 MB) per owner, and divides the memory."""
    worker_idle_s: float = Field(
        default=60, gt=0, description="With workers=auto: seconds until an idle worker of an owner ends."
    )
    worker_silent_s: float = Field(
        default=10,
        ge=5,
        description="Seconds without a sign of life after which a worker process is ended and replaced.",
    )
    """A worker shows one a second. A stop of a few seconds, as by a debugger or a snapshot, costs no session."""
    threads: int = Field(
        default=min(8, max(3, cores() + 1)),
        ge=1,
        le=256,
        description="Calls that a worker runs at a time; by default one more than there are cores, 3 to 8.",
    )
    device: str = Field(default="cpu", description="Default device of calls: cpu, gpu or gpu:1.")
    devices: tuple[str, ...] = Field(default=(), description="Devices that calls may name; empty: all devices.")
    gpu_selfcheck_s: float = Field(
        default=60,
        ge=0,
        description="Maximum seconds that the check of a GPU's kernels delays its first use; 0: use them unchecked.",
    )
    ops: tuple[Path, ...] = Field(default=(), description="Python files that register further operators.")

    max_connections: int = Field(
        default=2048, ge=4, description="Maximum number of connections; a quarter may be without their first request."
    )
    """Twice max_in_flight: each request may have a connection, and as many may be idle."""
    max_connections_per_address: int = Field(
        default=1024, ge=1, description="Maximum number of connections from one address (IPv6: from one /64 network)."
    )
    """A team may be behind one address; half of all leaves the other half to others."""
    max_request_head_bytes: int = Field(
        default=1 << 16, ge=1024, description="Maximum bytes of a request's line and headers."
    )
    """As much as one read; clients send 1 or 2 KiB."""
    request_head_s: float = Field(
        default=10,
        gt=0,
        description="Maximum seconds for a request's line and headers, and of silence on a new connection.",
    )
    """A head is one or two packets; the slowest links deliver them within this time."""
    keep_alive_s: float = Field(default=75, gt=0, description="Seconds that a connection stays open without a request.")
    """More than the 60 s of nginx's, so that nginx ends the connection and loses no request."""
    max_body_bytes: int = Field(default=2 * GIB, ge=1024, description="Maximum bytes of a request's body.")
    max_grpc_bytes: int = Field(
        default=64 << 20, ge=1024, lt=1 << 31, description="Maximum bytes of a message by gRPC."
    )
    """Less than a body's: a message's size is known only when all of it is in memory."""
    max_header_bytes: int = Field(default=16 << 20, ge=1024, description="Maximum bytes of the JSON part of a body.")
    max_buffer_bytes: int = Field(
        default=8 * GIB, ge=1 << 20, description="Maximum bytes of all bodies and answers in transfer."
    )
    max_owner_buffer_bytes: int = Field(
        default=4 * GIB, ge=1 << 16, description="Maximum bytes of an owner's bodies and answers in transfer."
    )
    max_kept_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description="Maximum bytes of an owner's answers to keep until the client has them; at most a quarter of the "
        "owner's transfer buffers.",
    )
    max_json_bytes: int = Field(
        default=64 << 20, ge=1024, description="Maximum bytes of a body or answer that is all JSON."
    )
    max_json_values: int = Field(default=2_000_000, ge=1024, description="Maximum number of values in JSON.")
    max_json_keys: int = Field(default=1_000_000, ge=1024, description="Maximum number of keys in JSON.")
    max_answer_bytes: int = Field(default=2 * GIB, ge=1024, description="Maximum bytes of an answer.")
    max_rank: int = Field(default=32, ge=1, le=32, description="Maximum number of dimensions of a tensor.")
    max_elements: int = Field(default=1 << 31, ge=1, description="Maximum number of elements of a tensor.")
    max_tensors: int = Field(default=8192, ge=1, description="Maximum number of tensors of a request.")
    max_nodes: int = Field(default=100_000, ge=1, description="Maximum number of nodes of a graph.")
    max_edges: int = Field(default=500_000, ge=1, description="Maximum number of inputs of all nodes of a graph.")
    graph_seconds: float = Field(
        default=30, gt=0, description="Maximum processor seconds to read, infer or compile a graph."
    )
    max_json_depth: int = Field(default=64, ge=4, le=500, description="Maximum nesting of JSON.")
    max_commands: int = Field(default=20_000, ge=1, description="Maximum number of commands of a batch.")
    max_sessions: int = Field(default=32, ge=1, description="Maximum number of sessions of an owner.")
    max_session_bytes: int = Field(default=8 * GIB, ge=1 << 16, description="Maximum device memory of a session.")
    max_owner_bytes: int = Field(
        default=0, ge=0, description="Maximum memory of an owner on a device; 0: max_device_bytes."
    )
    max_device_bytes: int = Field(
        default=0, ge=0, description="Maximum memory of all sessions on a device; 0: three quarters of the machine's."
    )
    max_session_objects: int = Field(
        default=100_000, ge=1, description="Maximum number of arrays and executors of a session."
    )
    max_waiting: int = Field(default=128, ge=1, description="Maximum number of waiting batches of a session.")
    max_in_flight: int = Field(default=1024, ge=1, description="Maximum number of requests at a time.")
    max_in_flight_per_owner: int = Field(
        default=128, ge=1, description="Maximum number of requests of an owner at a time."
    )
    max_owner_seconds: float = Field(
        default=0, ge=0, description="Maximum seconds of workers' time of an owner in a day (UTC); 0: no limit."
    )

    models: Path | None = Field(
        default=None, description="Folder of models to serve by the Open Inference Protocol; without it there are none."
    )
    strict_readiness: bool = Field(
        default=True, description="Answer /v2/health/ready with 503 until every model was loaded, or could not be."
    )
    shared_memory: str = Field(
        default="off",
        pattern=r"^(off|own|[0-9]{1,10})$",
        description="Whose segments of POSIX shared memory clients on this machine may register for models' tensors: "
        "own: those of the server's own user; a user's number; off: nobody's. Off by default, as every owner of a "
        "token then may read and write all segments of that user, and as a reverse proxy that sends no "
        "X-Forwarded-For makes every client look like one of this machine.",
    )
    max_shared_memory_regions: int = Field(
        default=64, ge=1, le=4096, description="Maximum number of registered regions of an owner; each is an open file."
    )
    state_dir: Path | None = Field(
        default=None,
        description="Directory for checkpoints, datasets, published models, the usage ledger and the audit log; "
        "without it there are none, and datasets and models last as long as the server.",
    )
    store_url: str | None = Field(
        default=None,
        description="Where servers that work together have checkpoints, published models, datasets and graphs: a "
        "folder that all of them have, as file:///mnt/opbox, or for all but datasets an object store, as "
        "s3://bucket/opbox; by default state_dir has them, and no graphs.",
    )
    usage_days: int = Field(default=400, ge=1, description="Number of days to keep in the usage ledger.")
    audit_bytes: int = Field(default=16 << 20, ge=1 << 16, description="Bytes of the audit log before it is rotated.")
    audit_files: int = Field(default=8, ge=1, le=1000, description="Number of rotated audit logs to keep.")
    audit_required: bool = Field(
        default=False, description="Refuse new sessions while the audit log cannot be written, as on a full disk."
    )
    max_checkpoints: int = Field(default=32, ge=0, description="Maximum number of checkpoints of an owner.")
    max_checkpoint_bytes: int = Field(default=4 * GIB, ge=0, description="Maximum bytes of an owner's checkpoints.")
    max_dataset_bytes: int = Field(default=4 * GIB, ge=0, description="Maximum bytes of an owner's stored datasets.")
    max_model_bytes: int = Field(
        default=4 * GIB, ge=0, description="Maximum bytes of the files of an owner's published models."
    )
    """As of checkpoints: two versions of eight networks of the size of ResNet-152 (240 MB)."""
    response_cache_bytes: int = Field(
        default=0,
        ge=0,
        description="Maximum bytes of answers that a worker keeps for models with response_cache = true; 0: none.",
    )
    max_model_versions: int = Field(
        default=2, ge=1, le=100, description="Number of versions to keep of each model that an owner published."
    )
    """The newest, and the one before it to go back to."""
    dataset_ttl_s: float = Field(
        default=7 * 86_400, gt=0, description="Seconds until an unused block of a dataset without a name is removed."
    )

    session_ttl_s: float = Field(default=600, gt=0, description="Seconds until an unused session ends.")
    max_ttl_s: float = Field(
        default=86_400, gt=0, description="Maximum time to live in seconds that a client may ask for."
    )
    deadline_s: float = Field(
        default=300, gt=0, description="Maximum seconds of a request; after that it is answered 504."
    )
    stall_s: float = Field(
        default=60,
        gt=0,
        description="Seconds that a client may leave its answer unread, or send less than 1 KiB a second of a body.",
    )
    stop_grace_s: float = Field(default=20, ge=0, description="Seconds that a stop waits for requests in flight.")

    code_sessions: int = Field(
        default=32, ge=0, description="Maximum number of sessions with code; each has a process of its own."
    )
    code_spares: int = Field(
        default=1, ge=0, le=16, description="Number of processes kept ready for sessions with code."
    )
    code_memory_bytes: int = Field(default=16 * GIB, ge=GIB, description="Maximum memory of a session with code.")
    max_code_bytes: int = Field(
        default=0,
        ge=0,
        description="Maximum memory of all sessions with code; 0: what others leave of 3/4 of the machine's.",
    )
    code_open_files: int = Field(default=512, ge=64, description="Maximum number of open files of a session's code.")
    code_file_bytes: int = Field(
        default=4 * GIB, ge=1 << 20, description="Maximum bytes of a file, or of an answer, of a session's code."
    )
    code_disk_bytes: int = Field(
        default=16 * GIB, ge=1 << 20, description="Maximum bytes of all files of a session's code."
    )
    code_files: int = Field(
        default=100_000, ge=100, description="Maximum number of files and folders of a session's code."
    )
    code_tasks: int = Field(
        default=64, ge=8, description="Maximum number of threads and processes of a session's code."
    )
    code_deadline_s: float = Field(
        default=60, gt=0, description="Maximum seconds of one command in a session with code."
    )
    code_cpu_s: float = Field(
        default=240, gt=0, description="Maximum processor seconds of one command in a session with code."
    )
    code_user: int = Field(
        default=59_000,
        ge=0,
        description="First user id for sessions with code, if the server runs as root; 0: they stay root.",
    )
    code_network: bool = Field(default=False, description="Whether a session's code may use the network.")
    code_seccomp: bool = Field(
        default=True,
        description="Whether a session's code is refused system calls that no operator needs, where the kernel has "
        "seccomp.",
    )
    code_reads: tuple[Path, ...] = Field(
        default=(), description="Further files and folders that a session's code may read."
    )

    graph_cache: int = Field(default=128, ge=1, description="Number of graphs to cache.")
    plan_cache: int = Field(
        default=64, ge=1, description="Number of compiled plans to cache for calls without a session."
    )
    plan_cache_bytes: int = Field(default=GIB, ge=0, description="Maximum bytes of idle compiled plans.")
    buffer_cache_bytes: int = Field(default=512 << 20, ge=0, description="Maximum bytes of idle transfer buffers.")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level of log lines."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="Form of log lines; auto: for people at a terminal, JSON elsewhere."
    )
    log_requests: bool = Field(default=False, description="Log every request, not only those that fail.")
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"https?://.+",
        description="Base URL of an OpenTelemetry collector that takes spans by OTLP over HTTP, such as "
        "http://collector:4318; without it no request is traced.",
    )

    @field_validator("workers", mode="before")
    @classmethod
    def _number_or_auto(cls, workers: object) -> object:
        number = int(workers) if isinstance(workers, str) and workers.isdecimal() else workers
        if number != "auto" and not (type(number) is int and 1 <= number <= MAX_WORKERS):
            raise ValueError(f"a number from 1 to {MAX_WORKERS}, or auto")
        return number

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise ValueError("origins such as https://example.org, without a path, or *")
        return origins

    @field_validator("root_path")
    @classmethod
    def _path(cls, path: str) -> str:
        if path and not re.fullmatch(r"(/[^/?#\s]+)+/?", path):
            raise ValueError("a path such as /opbox")
        return path.rstrip("/")

    @field_validator("group_host")
    @classmethod
    def _interface(cls, host: str) -> str:
        try:
            return str(ipaddress.ip_interface(host)) if host else ""
        except ValueError:
            raise ValueError("an address with the length of its network, such as 10.0.0.5/24") from None

    @field_validator("group_ports")
    @classmethod
    def _ports(cls, ports: str) -> str:
        bounds = re.fullmatch(r"(\d{1,5})-(\d{1,5})", ports)
        if ports and (bounds is None or not 0 < int(bounds[1]) <= int(bounds[2]) < 1 << 16):
            raise ValueError("the first and the last port, from 1 to 65535, such as 20000-20099")
        return ports

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError("addresses or networks such as 10.0.0.7 or 10.0.0.0/8") from None
        return proxies

    @field_validator(
        "token_file", "tokens_file", "quota_shares_file", "state_dir", "models", "ssl_certfile", "ssl_keyfile"
    )
    @classmethod
    def _absolute_file(cls, path: Path | None) -> Path | None:
        return None if path is None else _expanded(path)

    @field_validator("store_url")
    @classmethod
    def _store(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"file:///[^?#]+|(?!file:)[a-z][a-z0-9+]*://[^?#\s]+", url):
            raise ValueError("a folder such as file:///mnt/opbox, or an object store such as s3://bucket/opbox")
        if url is not None and url.startswith("memory:"):
            raise ValueError("a store that processes can share, such as file:///mnt/opbox or s3://bucket/opbox")
        return None if url is None else url.rstrip("/")

    @field_validator("ops", "code_reads")
    @classmethod
    def _absolute(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        # A process of a session's own works in a folder of its own.
        return tuple(_expanded(path) for path in paths)

    @field_validator("oidc_jwks")
    @classmethod
    def _url_or_file(cls, place: str | None) -> str | None:
        if place is None or "://" not in place:
            return None if place is None else str(_expanded(Path(place)))
        if not re.fullmatch(r"https://[^\s]+|http://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(/[^\s]*)?", place):
            raise ValueError("a file, or a URL with https (http on this machine only)")
        return place

    @property
    def scopes_of_claims(self) -> dict[str, frozenset[Scope]]:
        """Scopes by values of OIDC's claim. By default with a prefix: an issuer's own `admin` is not the server's."""
        return self.oidc_scopes or {f"opbox:{scope}": frozenset({scope}) for scope in SCOPES}

    @property
    def store_dir(self) -> Path | None:
        """The folder of what owners store: that which store_url names, and otherwise the state directory."""
        if self.store_url is not None and self.store_url.startswith("file:"):
            return Path(unquote(self.store_url.removeprefix("file://")))
        return self.state_dir

    @property
    def objects_url(self) -> str | None:
        """The object store of store_url; None where that names a folder, or nothing."""
        return None if self.store_url is None or self.store_url.startswith("file:") else self.store_url

    @property
    def keeps_checkpoints(self) -> bool:
        """True if there is a place for checkpoints."""
        return self.state_dir is not None or self.store_url is not None

    @property
    def is_anybody_known(self) -> bool:
        """True if some token is configured."""
        return bool(self.token or self.tokens or self.token_file or self.tokens_file or self.oidc_issuer)

    def without_plain_tokens(self) -> Settings:
        """The same settings with hashes in the place of tokens."""
        tokens = self.tokens
        if self.token is not None:
            tokens = (*tokens, Token(name=DEFAULT_OWNER, token=self.token, scopes=SCOPES))
        return self.model_copy(update={"token": None, "tokens": tuple(token.hashed() for token in tokens)})

    @classmethod
    def embedded(cls) -> Settings:
        """Settings without limits, for an engine inside the user's own process."""
        huge = 1 << 62
        return cls(
            node="",
            token=None,  # OPBOX_TOKEN may be meant for a server; nothing here asks for one
            tokens=(),
            token_file=None,
            tokens_file=None,
            oidc_issuer=None,
            max_body_bytes=huge,
            max_header_bytes=huge,
            max_json_bytes=huge,
            max_json_values=huge,
            max_json_keys=huge,
            max_answer_bytes=huge,
            max_edges=huge,
            graph_seconds=1e9,
            max_elements=huge,
            max_tensors=1 << 31,
            max_commands=1 << 31,
            max_sessions=1 << 31,
            max_session_bytes=huge,
            max_device_bytes=huge,
            max_owner_buffer_bytes=huge,
            max_owner_seconds=0,
            max_dataset_bytes=huge,
            max_session_objects=1 << 31,
            session_ttl_s=1e9,
            max_ttl_s=1e9,
            deadline_s=1e6,
            group_host=os.environ.get("OPBOX_GROUP_HOST") or "127.0.0.1/8",
            group_ports=os.environ.get("OPBOX_GROUP_PORTS", ""),
        )
