"""The environment that a worker process begins in, and the exit status that it ends with, in words."""

from __future__ import annotations

import os

from ..exit_status import ending_of
from ..settings import SECRETS, Settings
from . import messages

__all__ = ["environment", "reason_of"]


def environment(settings: Settings) -> dict[str, str]:
    """The worker's environment: no secrets, and threads for BLAS that leave the other workers theirs."""
    secrets = ("OPBOX_TOKEN", *(f"OPBOX_{name.upper()}" for name in SECRETS))
    variables = {key: value for key, value in os.environ.items() if not key.upper().startswith(secrets)}
    # One core stays with the API process and, on one machine, the client: BLAS threads wait for each other by spinning,
    # and small products take many times as long when one of them has no core.
    workers = 2 if settings.workers == "auto" else settings.workers
    cores = str(max(1, ((os.cpu_count() or 2) - 1) // workers))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        variables.setdefault(name, cores)
    return variables


def reason_of(code: int) -> str:
    """An exit status in words."""
    if code == messages.DEVICE_LOST:
        return "its GPU failed"
    return ending_of(code)
