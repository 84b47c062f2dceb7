"""The setting that lets cuDNN add by atomics, whose order changes from run to run."""

from __future__ import annotations

import os

__all__ = ["allow_nondeterministic"]


def allow_nondeterministic() -> bool:
    """Return whether OPBOX_ALLOW_NONDETERMINISTIC is 1: the last bits of a convolution's gradients may change."""
    return os.environ.get("OPBOX_ALLOW_NONDETERMINISTIC") == "1"
