"""Many sessions with code at once: each is there soon, while others train."""

from __future__ import annotations

import statistics
import threading
import time

from tests.attack.attack import MIB, Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS"]

SESSIONS = 10
MEDIAN_S = 1.0


def at_once(box: Box) -> Outcome:
    seconds: list[float] = []

    def open_one() -> None:
        began = time.monotonic()
        box.live.session("py", code=True)
        seconds.append(time.monotonic() - began)

    threads = [threading.Thread(target=open_one) for _ in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(seconds) < SESSIONS:
        return Outcome(False, f"of {SESSIONS} sessions {len(seconds)} were opened")
    median = statistics.median(seconds)
    return Outcome(median < MEDIAN_S, f"median {median:.2f} s, worst {max(seconds):.2f} s")


ATTACKS = [
    Attack(
        "opening",
        f"{SESSIONS} sessions with code at once",
        at_once,
        {"OPBOX_CODE_SPARES": "1"},
        keeps=64 * MIB,
        limit_s=120.0,
    )
]
