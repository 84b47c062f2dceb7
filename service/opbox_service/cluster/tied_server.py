"""`opbox serve` as a child that ends with its parent: a node whose actor has died serves nobody any more."""

from __future__ import annotations

import runpy
import sys

from ..worker.confine import die_with

__all__ = ["main"]


def main(parent: int) -> None:
    """Serve until a signal, or until the process `parent` has ended, whichever way."""
    die_with(parent)
    sys.argv[1:] = []
    runpy.run_module("opbox_service.serve", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
