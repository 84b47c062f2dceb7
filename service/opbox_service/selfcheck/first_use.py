"""Has a GPU checked before a process first computes on it, if the settings say so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from opbox_ops.backend import Backend
from opbox_ops.backend.select import before_first_use
from opbox_ops.compute import LEVELS, highest_level

from ..memory_shares import has_gpu
from ..settings import Settings

__all__ = ["start_check", "watch_first_use"]


def watch_first_use(settings: Settings) -> None:
    """Check each GPU that this process comes to use; none where CuPy computes everything, or the limit is 0 seconds."""
    limit_s = settings.gpu_selfcheck_s

    def check(device: str, backend: Backend) -> None:
        from .admission import admit  # for processes with a GPU alone

        admit(device, backend, limit_s)

    before_first_use(check if _checks(settings) else None)


def start_check(settings: Settings) -> subprocess.Popen[bytes] | None:
    """Start to check the machine's first GPU while the server starts, so that its first session need not wait as long.

    The workers look for the verdict themselves, and wait for a check that is under way.
    """
    if not _checks(settings) or not has_gpu(settings):
        return None
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_TOKEN")}
    command = [sys.executable, "-P", "-m", "opbox_service.selfcheck.command", f"{settings.gpu_selfcheck_s:g}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # the workers log what is to be said
        start_new_session=True,
        env=environment,
    )
    threading.Thread(target=process.wait, name="opbox-selfcheck", daemon=True).start()
    return process


def _checks(settings: Settings) -> bool:
    return bool(settings.gpu_selfcheck_s) and highest_level() != LEVELS[0]
