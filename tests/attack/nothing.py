"""No attack: what a server takes that nobody attacks."""

from __future__ import annotations

import time

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS"]


def rest(box: Box) -> Outcome:
    time.sleep(5)
    return Outcome(True, "nothing was sent")


def code(box: Box) -> Outcome:
    session, answer = box.run_code(well_meant)
    session.delete()
    return Outcome(box.text(answer) == "45", f"code returned {box.text(answer)}")


def well_meant() -> object:
    return sum(range(10))


ATTACKS = [
    Attack("nothing", "nothing, for five seconds", rest),
    Attack("code", "code that does what it should", code),
]
