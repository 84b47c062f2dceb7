"""`opbox serve` as a child that ends with its parent: a node whose actor has died serves nobody any more."""

from __future__ import annotations

import sys

from ..worker.confine import die_with

__all__ = ["main"]


def main(parent: int) -> int:
    """Serve until a signal, or until the process `parent` has ended, whichever way."""
    die_with(parent)
    from .. import serve  # after that: its import takes a second

    return serve.main([])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
