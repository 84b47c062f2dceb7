"""The version file of a state directory: newer state is refused, older upgraded in place, and others are waited for."""

from __future__ import annotations

import json
import os
import threading
from importlib.metadata import version
from pathlib import Path

import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service import state_format, state_swap
from opbox_service.accounting.accounts import Accounts
from opbox_service.settings import Settings
from opbox_service.state_format import StateLock, open_state
from opbox_service.stores import open_stores

NEWER = b'{"format": 99, "opbox": "9.0.0"}'


def said(folder: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((folder / "version.json").read_bytes())
    return document


def names(folder: Path) -> list[str]:
    """The entries of the state."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_new_directory_says_its_format(tmp_path: Path) -> None:
    lock = open_state(tmp_path / "new" / "state")
    assert said(tmp_path / "new" / "state") == {"format": state_format.FORMAT, "opbox": version("opbox-service")}
    again = open_state(tmp_path / "new" / "state")
    lock.close()
    again.close()


def test_newer_state_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "version.json").write_bytes(NEWER)
    sentence = (
        rf"state_dir: {tmp_path}: expected state of format 1 or older, got format 99, which opbox 9.0.0 wrote \(this "
        r"is opbox [\d.]+\): use that version or a later one, or a backup of before the upgrade"
    )
    with pytest.raises(NotReadyError, match=sentence):
        open_stores(Settings(state_dir=tmp_path), Accounts(Settings()))
    assert names(tmp_path) == ["version.json"]
    assert (tmp_path / "version.json").read_bytes() == NEWER
    assert StateLock(tmp_path).alone()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1",
        b"{}",
        b"\xff\xfe",
        b'{"format": "1", "opbox": "0.1.0"}',
        b'{"format": true, "opbox": "0.1.0"}',
        b'{"format": 0, "opbox": "0.1.0"}',
        b'{"format": -1, "opbox": "0.1.0"}',
        b'{"format": 1}',
        b'{"format": 1, "opbox": 3}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_version_file_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "version.json").write_bytes(text)
    with pytest.raises(NotReadyError, match=r'version.json: expected \{"format": 1, "opbox": "VERSION"\}, got b'):
        open_state(tmp_path)
    assert (tmp_path / "version.json").read_bytes() == text


def test_older_state_is_upgraded_step_by_step(tmp_path: Path) -> None:
    open_state(tmp_path).close()
    (tmp_path / "notes").write_text("one")
    steps: list[int] = []

    def first(folder: Path) -> None:
        steps.append(1)
        (folder / "notes").write_text("two")

    def second(folder: Path) -> None:
        steps.append(2)
        if len(steps) == 2:
            raise OSError(28, "No space left on device")
        (folder / "notes").rename(folder / "renamed")

    upgrades = {1: first, 2: second}
    with pytest.raises(NotReadyError, match="expected a directory that can be written to, got none"):
        open_state(tmp_path, upgrades=upgrades)
    assert said(tmp_path)["format"] == 2  # the step that ended is not done again
    open_state(tmp_path, upgrades=upgrades).close()
    assert steps == [1, 2, 2]
    assert (tmp_path / "renamed").read_text() == "two"
    assert said(tmp_path)["format"] == 3


def test_an_upgrade_waits_until_nobody_uses_the_directory(tmp_path: Path) -> None:
    other = open_state(tmp_path)
    upgrades = {1: lambda folder: None}
    with pytest.raises(NotReadyError, match="got format 1 while other servers use it: stop them"):
        open_state(tmp_path, upgrades=upgrades, busy_s=0.2)
    waited = threading.Timer(0.2, other.close)
    waited.start()
    open_state(tmp_path, upgrades=upgrades, busy_s=60).close()
    waited.join()
    assert said(tmp_path)["format"] == 2


def test_servers_that_start_at_once_upgrade_once(tmp_path: Path) -> None:
    open_state(tmp_path).close()
    upgraded: list[int] = []
    upgrades = {1: lambda folder: upgraded.append(1)}
    locks: list[StateLock] = []

    def start() -> None:
        locks.append(open_state(tmp_path, upgrades=upgrades, busy_s=60))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(locks) == 6
    assert upgraded == [1]


def test_a_directory_that_is_being_replaced_is_waited_for(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    assert lock.alone()
    with pytest.raises(NotReadyError, match="got one that is being upgraded or restored: try again"):
        open_state(tmp_path, busy_s=0.1)
    lock.release()
    open_state(tmp_path).close()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="state_dir: cannot make"):
        open_state(tmp_path / "file")


# -- replacing all of it ------------------------------------------------------------------------------------------


def fill(folder: Path, word: str) -> None:
    """State of three entries, one of which only this state has."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "a").write_text(word)
    (folder / f"{word}-alone").write_text(word)
    (folder / "usage.sqlite").write_text(word)
    state_format.own_version().write(folder)


def words(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("failing", range(14))
def test_a_swap_that_stops_anywhere_leaves_one_whole_state(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine that stops: nothing is mended until the directory is opened again."""
    folder = tmp_path / "state"
    fill(folder, "old")
    incoming = state_swap.incoming_folder(folder)
    fill(incoming, "new")
    renames = 0
    rename = Path.rename

    def stopping(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames > failing:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stopping)
    try:
        state_swap.swap_in(folder, incoming)
    except OSError:
        ended = False
    else:
        ended = True
    monkeypatch.setattr(Path, "rename", rename)
    open_state(folder).close()
    word = "new" if ended else "old"
    assert names(folder) == sorted(["checkpoints", f"{word}-alone", "usage.sqlite", "version.json"])
    assert {text for name, text in words(folder).items() if name not in (".lock", "version.json")} == {word}
    assert not [name for name in os.listdir(folder) if name.startswith(".") and name != ".lock"]
    assert ended == (failing >= 10)  # four entries there, four here, and two names
