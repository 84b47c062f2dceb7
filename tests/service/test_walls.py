"""What a server says of the walls around code: those of this kernel, and what is in reach where one is missing."""

from __future__ import annotations

import os

import pytest

from opbox_service.settings import Settings
from opbox_service.worker import landlock, seccomp
from opbox_service.worker.walls import walls_of


def test_the_line_names_what_holds() -> None:
    walls = walls_of(Settings())
    root, version = os.geteuid() == 0, landlock.abi()
    assert ("a user id of its own" in walls.line) == root
    assert (f"Landlock {version}" in walls.line) == (version > 0)
    assert (", seccomp" in walls.line) == seccomp.available()
    if version and seccomp.available():
        assert walls.missing == ()
        assert walls.line.endswith(", no network")


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({"code_seccomp": False}, "no seccomp"),
        ({"code_network": True}, "the server's network"),
        ({"code_user": 0}, "the server's user id"),
    ],
)
def test_settings_take_walls_away(further: dict[str, bool | int], words: str) -> None:
    walls = walls_of(Settings(**further))
    assert words in walls.line
    assert any("OPBOX_CODE_SECCOMP is off" in sentence for sentence in walls.missing) == ("code_seccomp" in further)
