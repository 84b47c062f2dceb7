"""Tokens and what each owner may: what the file of both may say, and quotas."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from opbox_protocol.errors import BadRequestError, QuotaError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.accounting.usage import seconds_to_tomorrow
from opbox_service.api.identity import Tokens
from opbox_service.api.token_files import read_tokens
from opbox_service.owner_terms import OwnerTerms, Token
from opbox_service.quota import Ledger
from opbox_service.settings import Settings

SECRET = "a-secret-token"
ANN: dict[str, Any] = {"name": "ann", "token": SECRET}
SCRYPT = "$scrypt$ln=4,r=8,p=1$c29tZSBzYWx0IGhlcmU$" + "A" * 43
NOON = 1_900_000_000.0 - 1_900_000_000.0 % 86_400 + 43_200


def write(folder: Path, document: object) -> Path:
    path = folder / "tokens.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"tokens": [], "owners": {"ann": {"weight": 0}}}, "owners.ann: weight: expected more than 0.0, got 0"),
        ({"tokens": [], "owners": {"ann": {"weight": 1001}}}, "owners.ann: weight: expected 1000.0 or less, got 1001"),
        ({"tokens": [], "owners": {"ann": {"urgency": 8}}}, "owners.ann: urgency: expected 7 or less, got 8"),
        ({"tokens": [], "owners": {"ann": {"sessions": -1}}}, "owners.ann: sessions: expected 0 or more, got -1"),
        ({"tokens": [], "owners": {"ann": {"sessions": True}}}, "owners.ann: sessions: expected an integer, got True"),
        ({"tokens": [], "owners": {"ann": {"session_bytes": 1}}}, "session_bytes: expected 65536 or more, got 1"),
        ({"tokens": [], "owners": {"ann": {"memory_bytes": "8G"}}}, "memory_bytes: expected an integer, got '8G'"),
        ({"tokens": [], "owners": {"ann": {"worker_seconds": -1}}}, "worker_seconds: expected 0.0 or more, got -1"),
        (
            '{"tokens": [], "owners": {"ann": {"worker_seconds": 1e999}}}',
            "owners.ann: worker_seconds: expected a finite number, got inf",
        ),
        ({"tokens": [], "owners": {"ann": {"worker_seconds": []}}}, "worker_seconds: expected a number, got []"),
        ({"tokens": [], "owners": {"ann": {"in_flight": 0}}}, "owners.ann: in_flight: expected 1 or more, got 0"),
        ({"tokens": [], "owners": {"ann": {"buffer_bytes": 5}}}, "buffer_bytes: expected 65536 or more, got 5"),
        ({"tokens": [], "owners": {"ann": {"checkpoints": -2}}}, "checkpoints: expected 0 or more, got -2"),
        (
            {"tokens": [], "owners": {"ann": {"checkpoint_bytes": 1.5}}},
            "checkpoint_bytes: expected an integer, got 1.5",
        ),
        ({"tokens": [], "owners": {"ann": {"sesions": 1}}}, "owners.ann: unknown field 'sesions': expected weight, "),
        ({"tokens": [], "owners": {"ann": 3}}, "owners.ann: expected an object, got 3"),
        ({"tokens": [], "owners": []}, "owners: expected an object, got []"),
        ({"tokens": [], "owners": {"": {}}}, "owners: expected names of 1 to 128 characters, got another"),
        ({"tokens": [], "owner": {}}, "unknown field 'owner': expected tokens, owners"),
        ({"owners": {}}, "tokens: expected a value"),
        (
            {"tokens": [{**ANN, "scope": "run"}]},
            "tokens.0: unknown field: expected name, token, sha256, scrypt, scopes, weight, expires",
        ),
        ([{**ANN, "scopes": ["all"]}], "tokens.0.scopes.0: expected one of 'run'"),
        ([{"name": "ann", "token": "short"}], "tokens.0.token: expected 8 or more characters"),
        ([{"name": "ann"}], "tokens.0: expected one of token, sha256 and scrypt"),
        ([{**ANN, "sha256": "0" * 64}], "tokens.0: expected one of token, sha256 and scrypt"),
        ([{"name": "ann", "sha256": "0" * 63}], "tokens.0.sha256: expected 64 digits of 0-9 and a-f"),
        ([{"name": "ann", "sha256": "A" * 64}], "tokens.0.sha256: expected 64 digits of 0-9 and a-f"),
        ([{"name": "ann", "scrypt": SECRET}], "tokens.0.scrypt: expected a hash such as $scrypt$ln=15,r=8,p=3$SALT$"),
        (
            [{"name": "ann", "scrypt": SCRYPT.replace("ln=4", "ln=30")}],
            "tokens.0.scrypt: expected a hash by scrypt whose check takes at most 256 MiB and some seconds",
        ),
        ([{"name": "ann", "scrypt": SCRYPT}] * 9, "expected at most 8 tokens with scrypt, got 9: use random ones"),
        ([{"name": "a\nb", "sha256": "0" * 64}], "tokens.0.name: expected 1 to 128 printable characters"),
        ({"tokens": [], "owners": {"a\x1b": {}}}, "owners: expected names of 1 to 128 characters, got another"),
        ('[], "owners": {}', "expected a JSON list of tokens, got malformed JSON"),
        ("", "expected a JSON list of tokens, got malformed JSON"),
    ],
)
def test_wrong_files(document: object, sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path, document)
    with pytest.raises(BadRequestError) as refusal:
        read_tokens(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert sentence in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "short" not in str(refusal.value)


def tokens_of(path: Path, **settings: Any) -> tuple[Tokens, Accounts, list[tuple[int, str]]]:
    whole = Settings(tokens_file=path, **settings)
    accounts, reads = Accounts(whole), list[tuple[int, str]]()
    tokens = Tokens(whole, accounts, lambda tokens, wrong: reads.append((tokens, wrong)), look_s=-1)  # at each call
    return tokens, accounts, reads


def test_terms_of_owners_are_read_again_with_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [ANN])
    tokens, accounts, reads = tokens_of(path, token=SecretStr("the-one-token"), max_sessions=5)
    assert accounts.of("ann") is accounts.usual
    header = b"Bearer " + SECRET.encode()

    path.write_text(json.dumps({"tokens": [ANN], "owners": {"ann": {"sessions": 2, "weight": 3}, "default": {}}}))
    assert tokens.identify(header).owner == "ann"
    assert (accounts.of("ann").sessions, accounts.of("ann").weight, accounts.of("ann").in_flight) == (2, 3, 128)
    assert (accounts.of("bob").sessions, accounts.of("default").sessions) == (5, 5)
    assert reads == [(2, "")]

    for owners, sentence in (
        ({"anne": {"sessions": 3}}, "owners.anne: expected the name of a token (ann, default), got one that none has"),
        ({"ann": {"weight": 0}}, "weight: expected more than 0.0"),
    ):
        path.write_text(json.dumps({"tokens": [ANN], "owners": owners}))
        assert tokens.identify(header).owner == "ann"
        assert accounts.of("ann").sessions == 2, "the terms of before stay"
        assert sentence in reads[-1][1]

    path.write_text(json.dumps({"tokens": [{**ANN, "weight": 2}], "owners": {"ann": {"weight": 2}}}))
    tokens.identify(header)
    assert "expected one weight, got one here and one at a token" in reads[-1][1]

    path.write_text(json.dumps([ANN]))
    tokens.identify(header)
    assert accounts.of("ann") is accounts.usual


def test_a_file_that_could_not_be_read_is_read_when_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text and its time of change stay the same when its mode is mended."""
    path = write(tmp_path, [ANN])
    tokens, accounts, reads = tokens_of(path, max_sessions=5)
    header = b"Bearer " + SECRET.encode()
    readable = Path.read_text

    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    write(tmp_path, {"tokens": [ANN], "owners": {"ann": {"sessions": 2}}}).chmod(0)
    with monkeypatch.context() as patch:  # whom a mode stops is not who runs tests as root
        patch.setattr(Path, "read_text", refused)
        assert tokens.identify(header).owner == "ann"
    assert (accounts.of("ann").sessions, "Permission denied" in reads[-1][1]) == (5, True)
    path.chmod(0o600)
    assert Path.read_text is readable
    assert tokens.identify(header).owner == "ann"
    assert accounts.of("ann").sessions == 2


def test_a_pipe_in_the_place_of_the_file_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [ANN])
    tokens, _, reads = tokens_of(path)
    path.unlink()
    os.mkfifo(path)
    asked = threading.Thread(target=tokens.identify, args=(b"Bearer " + SECRET.encode(),), daemon=True)
    asked.start()
    asked.join(20)
    assert not asked.is_alive()
    assert reads == [(1, f"{path}: expected a file of tokens, got a pipe: write the tokens into a file")]


def test_who_may_have_no_session_is_told_so() -> None:
    accounts = Accounts(Settings())
    accounts.replace({"ann": OwnerTerms(sessions=0)})
    books = Books(Settings(), accounts)
    with pytest.raises(QuotaError, match="sessions: expected none, as your quota is 0, got one: make calls without a"):
        books.check_sessions("ann")
    books.usage.close()


def test_terms_of_nobody_stop_a_server_at_its_start(tmp_path: Path) -> None:
    path = write(tmp_path, {"tokens": [ANN], "owners": {"anna": {}}})
    with pytest.raises(BadRequestError, match="got one that none has"):
        tokens_of(path)


def test_worker_seconds_of_a_day() -> None:
    settings = Settings(max_owner_seconds=2, tokens=(Token(name="ann", token=SecretStr(SECRET)),))
    accounts = Accounts(settings)
    accounts.replace({"bob": OwnerTerms(worker_seconds=5)})
    books = Books(settings, accounts)
    for owner in ("ann", "bob"):
        books.usage.count(owner, worker_seconds=3.0)
    books.check_time("bob")
    with pytest.raises(QuotaError, match="worker seconds: expected at most 2 of an owner in a day, got 3") as refusal:
        books.check_time("ann")
    assert 0 < refusal.value.detail["retry_after_s"] <= 86_401
    assert seconds_to_tomorrow(NOON) == 43_200
    books.usage.close()


def test_memory_of_an_owner_is_that_of_all_workers() -> None:
    settings = Settings()
    accounts = Accounts(settings)
    accounts.replace({"ann": OwnerTerms(memory_bytes=1 << 20, sessions=4)})
    books = Books(settings, accounts)
    one, two = object(), object()
    books.take_memory(one, [("ann", "cpu", 700_000), ("bob", "cpu", 5)])
    assert books.quota("bob", two) is None
    quota = books.quota("ann", two)
    assert quota is not None
    assert (quota.sessions, quota.memory_bytes, quota.elsewhere) == (4, 1 << 20, {"cpu": 700_000})
    ledger = Ledger(1 << 30, 1 << 30)
    budget = ledger.of("ann", "cpu")
    ledger.limit("ann", quota.memory_bytes, quota.elsewhere)
    assert budget.limit == (1 << 20) - 700_000
    with pytest.raises(QuotaError, match="memory of all your sessions"):
        budget.take(400_000)
    books.forget(one)
    quota = books.quota("ann", two)
    assert quota is not None
    ledger.limit("ann", quota.memory_bytes, quota.elsewhere)
    budget.take(400_000)
    ledger.limit("ann", 0, {})
    assert budget.limit == 1 << 30
    books.usage.close()
