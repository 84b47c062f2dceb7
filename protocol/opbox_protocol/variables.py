"""The variables `OPBOX_…` of an environment: which there are beside a server's settings, and what a wrong one meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator

__all__ = ["PREFIX", "READ_BY_PROGRAMS", "unknown_variables"]

PREFIX = "OPBOX_"
READ_BY_PROGRAMS = frozenset(
    (
        *("ALLOW_NONDETERMINISTIC", "ALLOW_TF32", "CACHE_DIR", "CODE", "COMPRESS", "COMPUTE_LEVEL", "CUBINS", "CUDNN"),
        *("CUDNN_TUNE", "C_KERNELS", "DATASETS", "DEBUG", "DIRECT", "DISABLE", "DIST", "MNIST", "ONEDNN"),
        *("ORACLE_PYTHON", "PATIENCE", "PRETEND_GPU", "PROGRESS", "REPORT", "RUNTIME_DIR", "TEST_REQUIRE_GPU"),
        *("TEST_REQUIRE_TORCH", "TEST_SKIPS", "TEST_SLICE", "TIMEOUT", "TORCH_PYTHON", "UNWRITTEN", "URL"),
    )
)
"""Variables (after OPBOX_) that the client, the operators or the tests read, and the server does not."""
_ORCHESTRATED = re.compile(r"OPBOX_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)")
"""Variables that Kubernetes and old Docker links add for a service called opbox."""
_LIKENESS = 0.88
"""As difflib measures it, of whole names: two letters exchanged in OPBOX_URL are 0.89."""


def unknown_variables(names: Iterable[str], settings: Collection[str]) -> Iterator[tuple[str, str]]:
    """The variables that look like opbox's and are none, in order, each with the nearest one that there is, or "".

    Args:
        names: of the environment's variables.
        settings: of a server, after OPBOX_.

    Example:
        >>> list(unknown_variables(["OPBOX_ULR", "PATH"], ["WORKERS"]))
        [('OPBOX_ULR', 'OPBOX_URL')]
    """
    known = READ_BY_PROGRAMS.union(settings)
    for name in sorted(names):
        prefix, _, rest = name.upper().partition(PREFIX)
        if prefix or not rest or rest in known or _ORCHESTRATED.fullmatch(name.upper()):
            continue
        near = difflib.get_close_matches(name.upper(), [PREFIX + one for one in sorted(known)], 1, _LIKENESS)
        yield name, near[0] if near else ""
