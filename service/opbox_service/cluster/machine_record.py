"""What this machine knows of the cluster that it is in, so that `opbox cluster status` needs no arguments.

One file of the user's own (0600), in the folder where servers leave their tokens: it has the token of Ray.
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

__all__ = ["MachineRecord", "new_ray_token", "read_record", "remove_record", "write_private", "write_record"]


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


def _path() -> Path:
    return token_store.folder() / "cluster.json"


def write_record(record: MachineRecord) -> None:
    """Leave the record for other commands of this user."""
    write_private(_path(), json.dumps(asdict(record)))


def remove_record(pid: int) -> None:
    """Remove the record of the process `pid`; that of another stays."""
    with contextlib.suppress(BadRequestError):
        if read_record().pid == pid:
            _path().unlink(missing_ok=True)


def read_record() -> MachineRecord:
    """Return the record of this machine's cluster.

    Raises:
        BadRequestError: there is none.
    """
    try:
        return MachineRecord(**json.loads(_path().read_text()))
    except FileNotFoundError:
        raise BadRequestError(
            "opbox cluster: expected a cluster on this machine, got none: opbox cluster start --head starts one, "
            "opbox cluster join ADDRESS joins one"
        ) from None
    except (ValueError, TypeError, OSError) as error:
        raise BadRequestError(f"{_path()}: expected the record of a cluster, got {error}: remove the file") from None
