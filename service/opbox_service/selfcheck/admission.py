"""Asks for a GPU's verdict before this process first computes on it, and has it checked where there is none yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from opbox_ops import trust
from opbox_ops.backend import Backend
from opbox_ops.backend.kernel_cache import kernel_folders
from opbox_ops.selfcheck.identity import identity_of

from . import supervision
from .record import Record
from .report import note, sentences

__all__ = ["admit"]

_log = logging.getLogger("opbox.gpu")


def admit(
    device: str,
    backend: Backend,
    limit_s: float,
    *,
    again: bool = False,
    hang_s: float = supervision.HANG_S,
    tell: Callable[[str, str], None] = lambda unit, reason: None,
) -> tuple[Record, str]:
    """Choose by a GPU's verdict from now on; where it is not complete, check for a time.

    Args:
        device, backend: the GPU.
        limit_s, hang_s: seconds for the check, and for one compute.
        again: whether everything is checked anew.
        tell: see `supervision.check`.

    Returns:
        What is known, and why it is not complete; empty if it is.
    """
    until = time.monotonic() + limit_s
    identity = identity_of(backend)
    records = [Record.of(folder, identity) for folder in kernel_folders()]
    record = next((one for one in records if one.finished), records[0])
    problem = ""
    if again or not record.finished:
        _log.warning(f"{device}: its kernels are compared with NumPy, once for this driver; {limit_s:g} s at most")
        with supervision.locked(records[0], until) as alone:
            record = records[0]
            record.read()
            if again:
                record = Record(record.path, identity)
            if alone and not record.finished:
                problem = supervision.check(device, record, limit_s, hang_s, tell).problem
            elif not alone:
                problem = "another process was still at it"
    trust.follow(device, record.answers)
    note(device, problem or record.problem)
    for sentence in sentences(device):
        _log.warning(f"{device}: {sentence}")
    return record, problem
