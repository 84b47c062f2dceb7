"""gRPC under attack: what `python -m tests.attack --only grpc` sends, on a server of its own each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.attack import MIB, Attack
from tests.attack.box import Box
from tests.attack.grpc_port import ATTACKS, health


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_server_stays_small_and_answers(attack: Attack, tmp_path: Path) -> None:
    box = Box(tmp_path, **attack.settings)
    try:
        assert health(box) == ""
        box.most = before = box.memory()
        outcome = attack.run(box)
        assert outcome.safe, outcome.says
        assert box.most - before <= attack.grows, f"grew by {(box.most - before) / MIB:.0f} MiB; {outcome.says}"
        assert health(box) == ""
    finally:
        status = box.stop()
    assert status == 0
