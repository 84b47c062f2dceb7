"""The variables `OPBOX_…` of a server's environment: those that are no settings stop it at its start."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from opbox_protocol.errors import BadRequestError

from .settings import Settings

__all__ = ["check_environment"]

ELSEWHERE = frozenset(
    {
        "URL",
        "TIMEOUT",
        "PATIENCE",
        "CODE",
        "COMPRESS",
        "DEBUG",
        "RUNTIME_DIR",
        "COMPUTE_LEVEL",
        "UNWRITTEN",
        "C_KERNELS",
        "CACHE_DIR",
        "PROGRESS",
        "REPORT",
        "DATASETS",
        "DIRECT",
        "DISABLE",
        "DIST",
        "CUBINS",
        "CUDNN",
        "CUDNN_TUNE",
        "ALLOW_NONDETERMINISTIC",
        "ALLOW_TF32",
        "ONEDNN",
        "MNIST",
        "ORACLE_PYTHON",
        "PRETEND_GPU",
        "TEST_REQUIRE_GPU",
        "TEST_REQUIRE_TORCH",
        "TEST_SKIPS",
        "TEST_SLICE",
        "TORCH_PYTHON",
    }
)
"""Variables (after OPBOX_) that the client, the operators or the tests read, and the server does not."""
_ORCHESTRATED = re.compile(r"OPBOX_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)")
"""Variables that Kubernetes and old Docker links add for a service called opbox."""


def check_environment(names: Iterable[str]) -> None:
    """Refuse variables that look like settings and are none, as a misspelt limit would be no limit.

    Args:
        names: of the environment's variables.

    Raises:
        BadRequestError: one that begins with OPBOX_ and that nothing reads; the nearest one that there is.

    Example:
        >>> check_environment(["OPBOX_WORKER"])
        Traceback (most recent call last):
        BadRequestError: OPBOX_WORKER: expected a setting of opbox, got an unknown name: did you mean OPBOX_WORKERS?
    """
    known = ELSEWHERE | {name.upper() for name in Settings.model_fields}
    for name in sorted(names):
        prefix, _, rest = name.upper().partition("OPBOX_")
        if prefix or not rest or rest in known or _ORCHESTRATED.fullmatch(name.upper()):
            continue
        near = difflib.get_close_matches(rest, known, 1, 0.7)
        remedy = f"did you mean OPBOX_{near[0]}?" if near else "see opbox serve --help, and unset it"
        raise BadRequestError(f"{name}: expected a setting of opbox, got an unknown name: {remedy}")
