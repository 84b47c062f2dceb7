"""A running server takes new shares of its owners' quotas from a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opbox_protocol.errors import QuotaError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.accounting.share_file import QuotaShare, ShareFile, SharesOfOwners, replace_file
from opbox_service.device_time import DeviceTime
from opbox_service.settings import Settings
from tests.contract.live import Live


def write(path: Path, others: QuotaShare | None = None, **owners: QuotaShare) -> None:
    replace_file(path, SharesOfOwners(owners=owners, others=others or QuotaShare()))


@pytest.fixture(params=["none", "process"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Live]:
    (tmp_path / "run").mkdir()
    live = Live(request.param, tmp_path / "run", OPBOX_QUOTA_SHARES_FILE=str(tmp_path / "shares.json"))
    yield live
    live.stop()


def test_a_lowered_share_refuses_and_a_raised_one_admits(server: Live, tmp_path: Path) -> None:
    server.session()
    write(tmp_path / "shares.json", ann=QuotaShare(sessions=1))
    answer = server.call("POST", "/v1/sessions", {})
    assert answer.status == 429
    assert answer.error == (
        "sessions: expected at most 1 of yours on this server, got one more: other servers have the rest of your "
        "quota: call the cluster's gateway, or try again in a second"
    )
    assert answer.http["retry-after"] == "1"
    server.session("bob")
    write(tmp_path / "shares.json", ann=QuotaShare(sessions=2))
    server.session()
    write(tmp_path / "shares.json", QuotaShare(sessions=0), ann=QuotaShare(sessions=2))
    assert server.call("POST", "/v1/sessions", {}, owner="bob").status == 429


def test_a_share_of_memory(server: Live, tmp_path: Path) -> None:
    session = server.session()
    array = np.zeros(1 << 20, np.float32)
    write(tmp_path / "shares.json", ann=QuotaShare(memory_bytes=1 << 20))
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=array).status == 429
    write(tmp_path / "shares.json", ann=QuotaShare(memory_bytes=1 << 24))
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=array).status == 200


def test_a_share_of_a_days_seconds(tmp_path: Path) -> None:
    path = tmp_path / "shares.json"
    books = Books(Settings(quota_shares_file=path), Accounts(Settings()))
    books.usage.take_times({("ann", "cpu"): DeviceTime(compute_s=5.0)})
    books.check_time("ann")
    write(path, ann=QuotaShare(worker_seconds=4.0), bob=QuotaShare(worker_seconds=0))
    with pytest.raises(QuotaError, match=r"worker seconds: expected at most 4 of yours on this server today, got 5\.0"):
        books.check_time("ann")
    with pytest.raises(QuotaError, match="expected at most 0 of yours"):
        books.check_time("bob")
    books.check_time("eve")
    write(path, ann=QuotaShare(worker_seconds=6.0))
    books.check_time("ann")


def test_a_share_of_no_memory_is_no_limit_of_none(tmp_path: Path) -> None:
    path = tmp_path / "shares.json"
    books = Books(Settings(quota_shares_file=path), Accounts(Settings()))
    assert books.quota("ann") is None
    write(path, ann=QuotaShare(memory_bytes=0))
    quota = books.quota("ann")
    assert quota is not None
    assert quota.memory_bytes == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"owners": {"ann": {"sessions": -1}}}', '{"owners": {"ann": {"in_flight": 1}}}', "[" * 9999],
)
def test_a_wrong_file_leaves_the_shares_of_before(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shares.json"
    shares = ShareFile(path)
    assert shares.of("ann") == QuotaShare()
    write(path, ann=QuotaShare(sessions=3))
    assert shares.of("ann").sessions == 3
    path.write_text(text)
    assert shares.of("ann").sessions == 3
    write(path, ann=QuotaShare(sessions=4))
    assert shares.of("ann").sessions == 4
    path.unlink()
    assert shares.of("ann").sessions == 4
