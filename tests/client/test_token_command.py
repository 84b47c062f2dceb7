"""`opbox token`: makes, lists and removes entries in a server's file of tokens."""

from __future__ import annotations

import contextlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from opbox.cli import main
from opbox_service.api.token_edits import add_token, expiry, remove_tokens
from opbox_service.api.token_files import read_tokens
from opbox_service.token_hashes import ScryptHash, sha256_of

PLAIN: dict[str, Any] = {"name": "old", "token": "a-plain-token", "scopes": ["run", "metrics"], "weight": 2}
OWNERS: dict[str, Any] = {"ann": {"sessions": 4, "weight": 2}, "old": {"urgency": 5}}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a plain token, and terms of its owner; the variable names it."""
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": [PLAIN], "owners": {"old": OWNERS["old"]}}))
    path.chmod(0o640)
    monkeypatch.setenv("OPBOX_TOKENS_FILE", str(path))
    return path


def run(*words: str) -> tuple[int, str, str]:
    """The exit status of `opbox token …`, and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["token", *words])
    return status, out.getvalue(), err.getvalue()


def test_a_new_token_is_printed_once_and_kept_as_a_hash(file: Path) -> None:
    status, printed, errors = run("new", "ann", "--scopes", "run, upload-python", "--expires", "90d")
    token = printed.strip()
    assert status == 0
    assert token not in errors
    assert token not in file.read_text()
    old, ann = read_tokens(file).tokens
    assert (old.name, old.weight, old.scopes) == ("old", 2, {"run", "metrics"})
    assert (ann.name, ann.sha256, ann.scopes) == ("ann", sha256_of(token), {"run", "upload-python"})
    assert ann.expires is not None
    assert timedelta(days=89) < ann.expires - datetime.now(UTC) <= timedelta(days=90)
    assert read_tokens(file).owners["old"].urgency == 5
    assert file.stat().st_mode & 0o777 == 0o640, "a mode that somebody chose stays"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert "other users can read plain tokens" in errors


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    assert run("new", "ann", "--file", str(path))[0] == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert run("list", "--file", str(path))[2] == "", "hashes are no plain tokens"


def test_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert run("new", "ann", "--file", str(link))[0] == 0
    assert link.is_symlink()
    assert len(read_tokens(file).tokens) == 2


def test_a_token_of_ones_own_is_kept_by_scrypt(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("my own long token\n"))
    assert "12 or more printable ASCII characters without spaces" in run("new", "bob", "--chosen")[2]
    monkeypatch.setattr("sys.stdin", io.StringIO("my-own-long-token\n"))
    status, printed, _ = run("new", "bob", "--chosen")
    assert (status, printed) == (0, "")
    scrypt = read_tokens(file).tokens[-1].scrypt
    assert scrypt is not None
    assert ScryptHash.parse(scrypt).matches(b"my-own-long-token")


def test_tokens_are_listed(file: Path) -> None:
    token = run("new", "ann")[1].strip()
    status, printed, _ = run("list", "--json")
    assert status == 0
    old, ann = json.loads(printed)["tokens"]
    assert (old["name"], old["kind"], old["expires"], old["expired"]) == ("old", "plain", None, False)
    assert (ann["name"], ann["kind"], ann["scopes"]) == ("ann", "sha256", ["run"])
    assert sha256_of(token).startswith(ann["id"])
    assert PLAIN["token"] not in printed
    assert "2 tokens" in run("list")[1]


def test_removing_a_token(file: Path) -> None:
    tokens = [run("new", "ann", "--json")[1] for _ in range(3)]
    ids = [json.loads(token)["id"] for token in tokens]
    file.write_text(json.dumps({**json.loads(file.read_text()), "owners": OWNERS}))
    status, _, errors = run("remove", "ann")
    assert status == 1
    assert f"ann: has 3 tokens ({', '.join(ids)}): name one by its id, or use --all" in errors
    assert run("remove", "ann", ids[1][:7])[:2] == (0, f"removed {ids[1]} of ann\n")
    assert [token.name for token in read_tokens(file).tokens] == ["old", "ann", "ann"]
    assert set(read_tokens(file).owners) == {"ann", "old"}
    status, printed, _ = run("remove", "ann", "--all", "--json")
    assert json.loads(printed) == {"removed": sorted([ids[0], ids[2]]), "terms": OWNERS["ann"]}
    assert set(read_tokens(file).owners) == {"old"}, "terms of nobody would keep the server from reading the file"
    assert run("remove", "old")[1].endswith("removed the terms of old: urgency 5\n")
    assert read_tokens(file).tokens == ()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("new", ""), "tokens.1.name: expected 1 or more characters"),
        (("new", "a\nb"), "tokens.1.name: expected 1 to 128 printable characters"),
        (("new", "ann", "--scopes", "root"), "scopes: expected some of admin, metrics, run, "),
        (("new", "ann", "--scopes", ""), "scopes: expected some of admin, metrics, run, "),
        (("new", "ann", "--expires", "soon"), "expires: expected a time such as 90d, 12h, 2030-01-31 or "),
        (("new", "ann", "--expires", "2001-01-31"), "got '2001-01-31', which has passed"),
        (("new", "ann", "--expires", "9" * 30 + "d"), "expires: expected a time such as 90d"),
        (("new", "ann", "--file", "/nowhere/tokens.json"), "expected a file in a folder, got none"),
        (("list", "--file", "/nowhere.json"), "/nowhere.json: expected a file of tokens, got none that can be read"),
        (("remove", "eve"), "eve: expected the name of a token in"),
        (("remove", "old", "zzzz"), "zzzz: expected the beginning of one id of old's tokens ("),
    ],
)
def test_what_is_refused_changes_nothing(words: tuple[str, ...], sentence: str, file: Path) -> None:
    before = file.read_bytes()
    status, printed, errors = run(*words)
    assert (status, printed) == (1, "")
    assert sentence in errors
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_broken_file_stays_as_it_is(file: Path) -> None:
    file.write_text('[{"name": "ann"')
    for words in (("new", "bob"), ("list",), ("remove", "ann")):
        assert "malformed JSON" in run(*words)[2]
    assert file.read_text() == '[{"name": "ann"'


def test_a_file_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_TOKENS_FILE", raising=False)
    assert run("new", "ann")[0] == 2
    assert "--file" in run("new", "ann")[2]


def test_edits_at_a_time_lose_nothing(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        tokens = list(threads.map(lambda number: add_token(file, f"owner {number}"), range(24)))
        list(threads.map(lambda number: remove_tokens(file, f"owner {number}"), range(0, 24, 2)))
    names = [token.name for token in read_tokens(file).tokens]
    assert sorted(names) == sorted(["old", *(f"owner {number}" for number in range(1, 24, 2))])
    hashes = {token.sha256 for token in read_tokens(file).tokens}
    assert {sha256_of(token) for token in tokens[1::2]} <= hashes


def test_a_time_without_a_zone_is_utc() -> None:
    assert expiry("2999-01-31") == datetime(2999, 1, 31, tzinfo=UTC)
    assert expiry("2999-01-31T12:00:00+01:00") == datetime(2999, 1, 31, 11, tzinfo=UTC)
