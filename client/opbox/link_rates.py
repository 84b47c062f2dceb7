"""LinkRates: how fast a link is, from the calls that travelled over it, and whether compressing pays there."""

from __future__ import annotations

import math
from collections import deque

from opbox_protocol.zstd import Sample

__all__ = ["LinkRates"]

MEASURED_BYTES = 1 << 15
"""Minimum bytes of a body from which a rate is taken."""
FIRST_BYTES = 1 << 20
"""Bytes that are measured before a rate counts."""
RATES = 8
"""Number of latest rates to keep: the highest counts, as the others may have waited for something else."""
FAST = 16e6
"""Bytes per second from which on nothing is compressed: 128 Mbit/s, above an office's 100. A link to this machine has
ten times as much, and even one of a machine that is busy, on which calls wait for each other, has more."""
WORTHWHILE = 0.9
"""Maximum part that samples of a body shrink to, for all of it to be compressed."""
GAIN = 4.0
"""Minimum seconds that the bytes saved take to travel, for each second of compressing: the other side decompresses, and
whatever else the processor does waits."""


class LinkRates:
    """The rates of a link, both ways, in bytes per second."""

    def __init__(self) -> None:
        self._round_trip = math.inf
        self._up, self._down = _Rates(), _Rates()

    def add(self, sent: int, came: int, seconds: float) -> None:
        """Note a request and its answer: the bytes of their bodies, and the seconds that the server did not take."""
        if max(sent, came) < MEASURED_BYTES:
            self._round_trip = min(self._round_trip, seconds)
            return
        if math.isfinite(self._round_trip):
            seconds -= self._round_trip
        for rates, nbytes in ((self._up, sent), (self._down, came)):
            if nbytes >= MEASURED_BYTES:
                rates.add(nbytes, seconds)

    @property
    def is_slow_up(self) -> bool:
        """Whether bodies may be worth compressing."""
        return self._up.value < FAST

    @property
    def is_slow_down(self) -> bool:
        """Whether answers may be."""
        return self._down.value < FAST

    def pays(self, sample: Sample) -> bool:
        """Return whether compressing a body saves time, by samples of it."""
        saved_s = (1.0 - sample.ratio) / self._up.value
        return sample.ratio <= WORTHWHILE and saved_s >= GAIN * sample.seconds


class _Rates:
    """The rates of bodies one way."""

    def __init__(self) -> None:
        self._bytes = 0
        self._rates: deque[float] = deque(maxlen=RATES)

    def add(self, nbytes: int, seconds: float) -> None:
        """Note a body."""
        self._bytes += nbytes
        self._rates.append(nbytes / max(seconds, 1e-6))

    @property
    def value(self) -> float:
        """The highest of the latest rates; infinite while too little was measured."""
        return max(self._rates) if self._bytes >= FIRST_BYTES else math.inf
