"""Gateway: what stands between this machine and a server lets through, learnt where its limits are met.

nginx refuses bodies of more than 1 MiB (413) and waits 60 seconds for an answer (504), unless it is told otherwise.
"""

from __future__ import annotations

from .link_rates import LinkRates

__all__ = ["Gateway"]

PART_BYTES = (1_000_000, 250_000, 60_000, 15_000)
"""Bytes of a part of a body, the first that is less than what was refused: gateways have limits of round numbers."""
WAIT_S = 45
"""Seconds to wait for an answer before it is asked for again: the limits of gateways are 60 and more."""


class Gateway:
    """The limits of what stands before a server; one for all connections there.

    Attributes:
        body_bytes: how many a request's body may have; None while none was refused.
        wait_s: seconds that an answer is waited for.
        met: whether a limit of either kind has been met.
        link: how fast it is.
        extensions: names of what the server can do beyond the first version of the protocol; None before it was asked.
    """

    def __init__(self) -> None:
        self.body_bytes: int | None = None
        self.wait_s = WAIT_S
        self.met = False
        self.link = LinkRates()
        self.extensions: frozenset[str] | None = None

    def refused(self, nbytes: int) -> bool:
        """Note that a body of so many bytes was refused (413); return whether smaller ones are worth a try."""
        smaller = next((size for size in PART_BYTES if size < nbytes), None)
        if smaller is None:
            return False
        self.met = True
        if self.body_bytes is None or smaller < self.body_bytes:
            self.body_bytes = smaller
        return True

    def gave_up(self, seconds: float) -> None:
        """Note that it has given up waiting for an answer after so many seconds (504)."""
        self.met = True
        self.wait_s = min(self.wait_s, max(1, int(seconds * 0.75)))
