"""What the command `opbox gpu-selfcheck` does; with a number of seconds, for a server that starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from opbox_ops.backend import backend_for, device_name
from opbox_protocol.errors import BadRequestError

from .admission import admit
from .report import summary

__all__ = ["check"]


def check(device: str, limit_s: float, again: bool, tell: Callable[[str, str], None]) -> dict[str, Any]:
    """Check a GPU, and return its verdict.

    Args:
        device: "gpu", "gpu:1".
        limit_s: seconds that it may take.
        again: whether it is checked anew.
        tell: called with each unit of the check when it is done, and what was wrong; empty if nothing was.

    Raises:
        UnsupportedError: there is no such GPU.
        BadRequestError: it is no GPU.
    """
    name = device_name(device)
    if not name.startswith("gpu"):
        raise BadRequestError(f"gpu-selfcheck: device {device!r}: expected a GPU such as gpu or gpu:1")
    record, problem = admit(name, backend_for(name), limit_s, again=again, tell=tell)
    refused = [
        {"kernel": kernel, "type": dtype, "reason": reason}
        for (kernel, dtype), reason in sorted(record.answers.items())
        if reason
    ]
    return {
        "device": name,
        "kernels": summary(name),
        "refused": refused,
        "complete": record.finished,
        "problem": problem or record.problem,
        "file": str(record.path),
        "identity": record.identity,
        "right": record.finished and not refused,
    }


if __name__ == "__main__":
    check("gpu", float(sys.argv[1]), False, lambda unit, reason: None)
