"""What `make attack` says of attacks: one that holds, one that goes wrong, one that ends the server."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.attack.__main__ import run
from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.attack.nothing import code


def wrong(box: Box) -> Outcome:
    raise RuntimeError("no such route")


def fatal(box: Box) -> Outcome:
    box.live.process.kill()
    box.live.process.wait()
    return Outcome(True, "nothing was seen")


@pytest.mark.parametrize(
    ("attack", "safe", "says"),
    [
        (code, True, "code returned 45"),
        (wrong, False, "RuntimeError: no such route"),
        (fatal, False, "nothing was seen; the other user's steps failed; the server's exit status was -9"),
    ],
)
def test_a_row_says_what_happened(attack: Callable[[Box], Outcome], safe: bool, says: str) -> None:
    row = run(Attack("of-a-test", "", attack, limit_s=600.0, waits_s=float("inf")), sys.executable)
    assert (row.safe, row.says) == (safe, says)
    assert row.steps + row.failed > 0
