"""An output area of a notebook cell that is updated in place."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["LiveDisplay", "in_notebook"]


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, whose cells show pictures."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class LiveDisplay:
    """The place: `show` puts forms by media type there, in the place of those before."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, forms: dict[str, str]) -> None:
        """Show these forms of one thing."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(forms, raw=True, display_id=True)  # type: ignore[no-untyped-call,unused-ignore]  # IPython's
        else:
            self._handle.update(forms, raw=True)
