"""Backups of state directories by themselves: what is refused, and that nothing is lost where something fails."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opbox.cli import main
from opbox_protocol.errors import ConflictError, DamagedFileError, FileError, MissingFileError, NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.backup.contents import ArchiveLabel, check_name
from opbox_service.backup.restoring import restore
from opbox_service.backup.writing import back_up
from opbox_service.dataset_store import DatasetArray, FileDatasets, NamedDataset
from opbox_service.settings import Settings
from opbox_service.state_format import open_state
from opbox_service.stores import open_stores

DATA = b"0123456789abcdef"
BLOCK = hashlib.sha256(DATA).hexdigest()
USAGE = "CREATE TABLE usage (day TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (day, owner)) WITHOUT ROWID"
"""A ledger's table, as a version without any figures would have made it."""


def fill(folder: Path) -> None:
    """A checkpoint, a named dataset, a ledger, and an audit log with an older file."""
    settings = Settings(state_dir=folder)
    stores = open_stores(settings, Accounts(settings))
    assert stores.checkpoints is not None
    assert stores.datasets is not None
    stores.checkpoints.save("ann", "run", [b"weights"])
    stores.datasets.put("ann", BLOCK, DATA)
    stores.datasets.save("ann", "digits", NamedDataset({"x": DatasetArray((4,), "float32", 4, (BLOCK,))}))
    with sqlite3.connect(folder / "usage.sqlite") as database:
        database.execute(USAGE)
        database.execute("INSERT INTO usage VALUES ('2030-01-31', 'ann')")
    database.close()
    (folder / "audit.log").write_text('{"action": "server.started"}\n')
    (folder / "audit.log.1").write_text('{"action": "server.stopped"}\n')
    for state in stores.states:
        state.close()


def texts(folder: Path) -> dict[str, bytes]:
    """The files of a state by name; what begins with a dot is none of it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    fill(tmp_path / "state")
    return tmp_path / "state"


@pytest.fixture
def archive(state: Path, tmp_path: Path) -> Path:
    back_up(state, tmp_path / "backup.tar")
    return tmp_path / "backup.tar"


def changed(archive: Path, change: Callable[[dict[str, bytes]], None]) -> io.BytesIO:
    """The archive with other files, and with the right sums of these where `change` does not write them itself."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    sums = files.pop("SHA256SUMS")
    change(files)
    if "SHA256SUMS" not in files:
        files["SHA256SUMS"] = "".join(
            f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in files.items()
        ).encode()
    assert sums
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    written.seek(0)
    return written


def test_all_of_it_comes_back(state: Path, archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_mode & 0o777 == 0o600
    restore(archive, tmp_path / "new")
    before, after = texts(state), texts(tmp_path / "new")
    assert after.pop("usage.sqlite") != b""
    assert before.pop("usage.sqlite") != b""
    assert after == before
    database = sqlite3.connect(tmp_path / "new" / "usage.sqlite")
    assert database.execute("SELECT day FROM usage").fetchall() == [("2030-01-31",)]
    database.close()
    datasets = FileDatasets(Settings(state_dir=tmp_path / "new"), Accounts(Settings()))
    assert bytes(datasets.load("ann", BLOCK)) == DATA
    assert [row.name for row in datasets.listed("ann")] == ["digits"]
    (block,) = (tmp_path / "new").rglob(BLOCK)
    (old,) = state.rglob(BLOCK)
    assert block.stat().st_mtime == pytest.approx(old.stat().st_mtime, abs=1)  # blocks expire by it


def test_the_sums_are_those_of_sha256sum(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            path = tmp_path / "by-hand" / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "by-hand", check=False)
    assert done.returncode == 0


def test_unfinished_files_and_secrets_stay_behind(state: Path, tmp_path: Path) -> None:
    (owner,) = (state / "checkpoints").iterdir()
    (owner / ".run.0badc0de").write_bytes(b"half")
    (state / "tokens.json").write_text("[]")
    back_up(state, tmp_path / "backup.tar")
    with tarfile.open(tmp_path / "backup.tar") as tar:
        assert not [name for name in tar.getnames() if "0badc0de" in name or "tokens" in name]


def test_tokens_travel_only_where_they_are_asked_for(state: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('[{"name": "ann", "token": "a-token-of-the-tests"}]')
    back_up(state, tmp_path / "with.tar", tokens)
    restore(tmp_path / "with.tar", tmp_path / "new")
    assert not list((tmp_path / "new").rglob("*tokens*"))
    with pytest.raises(FileError, match=r"tokens.json: expected a new file, got one that is there"):
        restore(tmp_path / "with.tar", tmp_path / "new", replace=True, tokens=tokens)
    restore(tmp_path / "with.tar", tmp_path / "new", replace=True, tokens=tmp_path / "back.json")
    assert (tmp_path / "back.json").read_text() == tokens.read_text()
    assert (tmp_path / "back.json").stat().st_mode & 0o777 == 0o600


def test_a_directory_in_use_is_not_restored(state: Path, archive: Path) -> None:
    lock = open_state(state)
    with pytest.raises(ConflictError, match=r"expected a directory that nobody uses, got one in use by a server"):
        restore(archive, state, replace=True)
    lock.close()
    with pytest.raises(ConflictError, match=r"expected an empty directory, got one with state: .* --replace"):
        restore(archive, state)
    (state / "audit.log.2").write_text("newer than the backup\n")
    restore(archive, state, replace=True)
    assert not (state / "audit.log.2").exists()
    assert not [path for path in state.iterdir() if path.name.startswith(".") and path.name != ".lock"]


BROKEN: dict[str, Callable[[dict[str, bytes]], None]] = {
    "expected files of a state directory, such as usage.sqlite, got '../outside'": lambda files: files.update(
        {"../outside": b"x"}
    ),
    "got '/etc/outside'": lambda files: files.update({"/etc/outside": b"x"}),
    "got 'checkpoints/../../outside'": lambda files: files.update({"checkpoints/../../outside": b"x"}),
    "got 'audit.log.lock'": lambda files: files.update({"audit.log.lock": b"x"}),
    "got 'version.json'": lambda files: files.update({"version.json": b"x"}),
    "expected opbox-backup.json first, got ": lambda files: files.__delitem__("opbox-backup.json"),
    "expected the file that SHA256SUMS lists, got bytes of another SHA-256": lambda files: files.update(
        SHA256SUMS=f"{'0' * 64}  usage.sqlite\n".encode()
    ),
    "got one that is missing or unlisted": lambda files: files.update(
        SHA256SUMS="".join(
            f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in [*files.items(), ("audit.log.7", b"")]
        ).encode()
    ),
    "SHA256SUMS: expected lines of a SHA-256 and a name, got others": lambda files: files.update(SHA256SUMS=b"\xff\n"),
    "opbox-backup.json: expected what opbox backup writes, got b'null'": lambda files: files.update(
        {"opbox-backup.json": b"null"}
    ),
    "expected an archive of format 1 or older, got format 2, which opbox 9.0.0 wrote": lambda files: files.update(
        {"opbox-backup.json": json.dumps({"archive": 2, "format": 1, "opbox": "9.0.0", "time": ""}).encode()}
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_archive_leaves_the_state_as_it_was(message: str, state: Path, archive: Path) -> None:
    before = texts(state)
    if "another SHA-256" in message:
        text = changed(archive, lambda files: files.update({"audit.log": files["audit.log"]})).read()
        source = io.BytesIO(text.replace(b"server.started", b"server.startef", 1))
    else:
        source = changed(archive, BROKEN[message])
    with pytest.raises(DamagedFileError) as error:
        restore(source, state, replace=True)
    assert message in str(error.value)
    assert str(error.value).startswith("restore: standard input: ")
    assert texts(state) == before
    assert not [path for path in state.iterdir() if path.name.startswith((".incoming", ".old", ".le"))]
    assert not (state.parent / "outside").exists()


def ledger(*statements: str, nbytes: int | None = None) -> bytes:
    """The first bytes of a database that is made by these statements."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        with contextlib.closing(sqlite3.connect(file.name)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()
        return Path(file.name).read_bytes()[:nbytes]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"no database at all, whatever its name says", "file is not a database"),
        (ledger("CREATE TABLE usage (day TEXT)"), "no such column: owner"),
        (ledger("CREATE TABLE usage (day TEXT, owner TEXT)"), "ON CONFLICT clause does not match"),
        (ledger("CREATE VIEW usage AS SELECT 1 AS day, 2 AS owner"), ""),
        (ledger(USAGE, "INSERT INTO usage VALUES ('2030-01-31', CAST(x'ff' AS TEXT))"), "Could not decode to UTF-8"),
        (ledger(USAGE, "CREATE TABLE other (x)", nbytes=2 * 4096), ""),
    ],
)
def test_a_ledger_that_no_server_opens_leaves_the_state_as_it_was(
    text: bytes, reason: str, state: Path, archive: Path
) -> None:
    before = texts(state)
    source = changed(archive, lambda files: files.update({"usage.sqlite": text}))
    with pytest.raises(DamagedFileError) as error:
        restore(source, state, replace=True)
    words = "restore: standard input: usage.sqlite: expected a usage ledger that a server can open, got none ("
    assert str(error.value).startswith(words)
    assert reason in str(error.value)
    assert texts(state) == before


@pytest.mark.parametrize("text", [b"\xff", b"token", b'[{"name": "ann"}]', b'{"tokens": 1}'])
def test_a_file_that_has_no_tokens_leaves_the_state_as_it_was(
    text: bytes, state: Path, archive: Path, tmp_path: Path
) -> None:
    before = texts(state)
    source = changed(archive, lambda files: files.update({"secrets/tokens.json": text}))
    with pytest.raises(DamagedFileError, match=r"^restore: standard input: secrets/tokens.json: "):
        restore(source, state, replace=True, tokens=tmp_path / "tokens.json")
    assert texts(state) == before
    assert not (tmp_path / "tokens.json").exists()
    source.seek(0)
    restore(source, state, replace=True)  # which leaves the tokens out


def killed_restore(archive: Path, folder: Path, number: int) -> bool:
    """Restore in a process that is killed before change `number` of the directory; whether it was."""
    child = os.fork()
    if child == 0:
        left = number

        def kill(event: str, arguments: object) -> None:
            nonlocal left
            if event in ("os.mkdir", "os.rename", "os.rmdir", "os.remove"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        try:
            restore(archive, folder, replace=True)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_restore_that_is_killed_anywhere_leaves_one_whole_state_and_nothing_else(
    state: Path, archive: Path, tmp_path: Path
) -> None:
    restore(archive, tmp_path / "restored")
    new = texts(tmp_path / "restored")
    (state / "audit.log").write_text("old")
    old = texts(state)
    outcomes: list[bool] = []
    while len(outcomes) < 200:
        folder = tmp_path / f"killed{len(outcomes)}"
        shutil.copytree(state, folder)
        killed = killed_restore(archive, folder, len(outcomes))
        open_state(folder).close()
        assert texts(folder) in (old, new)
        assert [name for name in os.listdir(folder) if name.startswith(".")] == [".lock"]
        outcomes.append(texts(folder) == new)
        if not killed:
            break
    assert outcomes == sorted(outcomes), "the old state, up to one moment"
    assert outcomes.count(False) > 15
    assert outcomes.count(True) > 5, "it is also killed while it removes the old one"


def test_newer_state_is_not_restored(state: Path, archive: Path) -> None:
    about = json.dumps({"archive": 1, "format": 9, "opbox": "9.0.0", "time": ""}).encode()
    source = changed(archive, lambda files: files.update({"opbox-backup.json": about}))
    before = texts(state)
    with pytest.raises(NotReadyError, match=r"expected state of format 1 or older, got format 9, which opbox 9.0.0"):
        restore(source, state, replace=True)
    assert texts(state) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_what_is_no_file_is_refused(kind: bytes, state: Path, archive: Path) -> None:
    text = io.BytesIO(archive.read_bytes())
    with tarfile.open(fileobj=text, mode="a") as tar:
        info = tarfile.TarInfo("audit.log.9")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    text.seek(0)
    before = texts(state)
    with pytest.raises(DamagedFileError, match=r"expected regular files alone, got 'audit.log.9'"):
        restore(text, state, replace=True)
    assert texts(state) == before


@pytest.mark.parametrize("part", [0.0, 0.01, 0.1, 0.5, 0.9, 0.97])
def test_an_archive_that_was_cut_off_is_refused(part: float, state: Path, archive: Path) -> None:
    before = texts(state)
    whole = archive.read_bytes()
    with tarfile.open(archive) as tar:
        end = tar.getmember("SHA256SUMS").offset_data
    with pytest.raises(DamagedFileError, match="restore: standard input: "):
        restore(io.BytesIO(whole[: int(end * part)]), state, replace=True)
    assert texts(state) == before


def test_noise_is_no_archive(state: Path, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(4096))
    with pytest.raises(DamagedFileError, match=r"noise: expected an archive of opbox backup, got another file"):
        restore(tmp_path / "noise", state, replace=True)


def test_names_that_a_backup_may_have() -> None:
    owner = "0" * 32
    for name in (f"checkpoints/{owner}/run@12.checkpoint", f"models/{owner}/net/3/published.json", "audit.log.12"):
        check_name(name)
    for name in ("", "usage.sqlite/x", f"models/{owner}/net/0/x", f"models/{owner}/net/1/.hidden", "audit.log\n"):
        with pytest.raises(DamagedFileError):
            check_name(name)


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"archive": "1"}', b"\xff", b"[" * 100_000])
def test_an_archive_that_says_nothing_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"opbox-backup.json: expected what opbox backup writes"):
        ArchiveLabel.parse(text)


def test_a_backup_that_fails_leaves_no_file(state: Path, tmp_path: Path) -> None:
    (tmp_path / "there.tar").write_text("mine")
    with pytest.raises(FileError, match="expected a new file, got one that is there"):
        back_up(state, tmp_path / "there.tar")
    assert (tmp_path / "there.tar").read_text() == "mine"
    with pytest.raises(FileError, match="expected a place outside the state directory"):
        back_up(state, state / "backup.tar")
    with pytest.raises(MissingFileError, match="expected a state directory, got a name that is not there"):
        back_up(tmp_path / "nowhere", tmp_path / "backup.tar")
    with pytest.raises(FileError, match=r"missing.json: No such file"):
        back_up(state, tmp_path / "backup.tar", tmp_path / "missing.json")
    (state / "usage.sqlite").write_text("no database at all, whatever its name says")
    with pytest.raises(FileError, match=r"usage.sqlite: expected a usage ledger that can be read"):
        back_up(state, tmp_path / "backup.tar")
    assert [path.name for path in tmp_path.iterdir() if "tar" in path.name] == ["there.tar"]


def test_the_commands(
    state: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, new = str(tmp_path / "backup.tar"), tmp_path / "new"
    assert main(["backup", file, "--state-dir", str(state)]) == 0
    assert "bytes in checkpoints 1, datasets 2, usage 1, audit 2" in capfd.readouterr().out
    assert main(["backup", file, "--state-dir", str(state)]) == 1
    assert "expected a new file, got one that is there" in capfd.readouterr().err
    monkeypatch.setenv("OPBOX_STATE_DIR", str(new))
    assert main(["restore", file]) == 0
    assert f"{new}: restored the backup of " in capfd.readouterr().out
    assert main(["restore", file]) == 1
    assert "--replace" in capfd.readouterr().err
    assert main(["restore", file, "--replace", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["archive"] == 1
    monkeypatch.delenv("OPBOX_STATE_DIR")
    assert main(["restore", file]) == 2
    assert main(["backup", "-", "--json", "--state-dir", str(state)]) == 2


def test_a_backup_goes_through_a_pipe(state: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "opbox.cli"]
    writing = subprocess.Popen([*command, "backup", "-", "--state-dir", str(state)], stdout=subprocess.PIPE)
    done = subprocess.run(
        [*command, "restore", "-", "--state-dir", str(tmp_path / "new")], stdin=writing.stdout, timeout=120, check=False
    )
    assert writing.stdout is not None
    writing.stdout.close()
    assert (writing.wait(60), done.returncode) == (0, 0)
    assert texts(tmp_path / "new").keys() == texts(state).keys()
