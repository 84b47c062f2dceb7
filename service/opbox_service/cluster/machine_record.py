"""What this machine knows of the cluster that it is in, so that `opbox cluster status` needs no arguments.

One file of the user's own (0600) for each `opbox cluster` that runs, in the folder where servers leave their tokens: it
has the token of Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from opbox import token_store
from opbox_protocol.errors import BadRequestError

__all__ = [
    "MachineRecord",
    "check_no_head",
    "new_ray_token",
    "read_record",
    "remove_record",
    "write_private",
    "write_record",
]


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """A cluster as one of its machines knows it.

    Attributes:
        address: of Ray's head, such as "192.0.2.7:6379".
        ray_token: of Ray; "" where Ray runs without.
        pid: of the `opbox cluster` that runs here.
        url: of the gateway; "" where this machine has none.
    """

    address: str
    ray_token: str
    pid: int
    url: str = ""


def new_ray_token() -> str:
    """Return a new random token for Ray: 64 hex digits."""
    return secrets.token_hex(32)


def write_private(path: Path, text: str) -> None:
    """Write a file that its user alone reads (0600), at once: readers find the old text or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


def _path(pid: int) -> Path:
    return token_store.folder() / f"cluster-{pid}.json"


def write_record(record: MachineRecord) -> None:
    """Leave the record for other commands of this user."""
    token_store.make_folder()
    write_private(_path(record.pid), json.dumps(asdict(record)))


def remove_record(pid: int) -> None:
    """Remove the record of the process `pid`."""
    _path(pid).unlink(missing_ok=True)


def read_record() -> MachineRecord:
    """Return the record of this machine's cluster: of several `opbox cluster` that run here, the head's.

    Raises:
        BadRequestError: there is none.
    """
    records = _records()
    if not records:
        raise BadRequestError(
            "opbox cluster: expected a cluster on this machine, got none: opbox cluster start --head starts one, "
            "opbox cluster join ADDRESS joins one"
        )
    return max(records, key=lambda record: (_runs(record.pid), bool(record.url)))


def check_no_head() -> None:
    """Refuse a second head of this user's on this machine: the two would have the same state and tokens.

    Raises:
        BadRequestError: one runs.
    """
    for record in _records():
        if record.url and _runs(record.pid):
            raise BadRequestError(
                f"opbox cluster: expected no head of yours on this machine, got one at {record.url} (process "
                f"{record.pid}): opbox cluster stop ends it, opbox cluster join {record.address} adds a node to it"
            )


def _records() -> list[MachineRecord]:
    records = []
    for path in sorted(token_store.folder().glob("cluster-*.json")):
        try:
            records.append(MachineRecord(**json.loads(path.read_text())))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError, OSError) as error:
            raise BadRequestError(f"{path}: expected the record of a cluster, got {error}: remove the file") from None
    return records


def _runs(pid: int) -> bool:
    """Whether an `opbox cluster` runs as this process: a number may have come to another program since."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        return b"opbox" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # a system without /proc
        return True
