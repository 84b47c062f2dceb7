"""`opbox cluster` without Ray: what it says of wrong words, and what its parts compute."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opbox_protocol.errors import BadRequestError
from opbox_service.accounting.share_file import QuotaShare, ShareFile
from opbox_service.cluster import ray_start
from opbox_service.cluster.command import main
from opbox_service.cluster.documents import OwnerQuotas, ReplicaReport
from opbox_service.cluster.machine import gateway_variables
from opbox_service.cluster.machine_record import MachineRecord, check_no_head, read_record, remove_record, write_record
from opbox_service.cluster.node_reports import Refusals, report_of
from opbox_service.cluster.node_shares import NodeShares
from opbox_service.cluster.owner_tokens import quotas_of, tokens_file, usual_quotas
from opbox_service.cluster.ray_start import RayPorts
from opbox_service.cluster.scaling import Scaling
from opbox_service.cluster.server_process import server_environment, with_proxies
from opbox_service.settings import Settings


@pytest.fixture
def ray_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opbox_service.cluster.command.check_ray", lambda: None)


@pytest.mark.parametrize("words", [["status"], ["join", "192.0.2.7"], ["start", "--head"], ["drain", "a"]])
def test_without_ray_it_says_how_to_install_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(words) == 1
    assert capsys.readouterr().err == (
        "opbox cluster: expected Ray, got a Python without it: pip install 'opbox-service[cluster]'\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["start"], "expected --head, got none"),
        (["start", "--head", "--port", "70000"], "70000 is not in the range"),
        (["join"], "Missing argument 'ADDRESS'"),
        (["drain"], "Missing argument 'NODE'"),
        (["sttus"], "No such command 'sttus'"),
    ],
)
def test_wrong_words(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.usefixtures("ray_is_there")
def test_a_machine_joins_with_a_token_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    assert main(["join", "192.0.2.7"]) == 1
    assert "RAY_AUTH_TOKEN: expected the cluster's token, got none" in capsys.readouterr().err


@pytest.mark.usefixtures("ray_is_there")
@pytest.mark.parametrize("first", ["80", "65500"])
def test_rays_ports_are_in_range(
    first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    assert main(["join", "192.0.2.7", "--ray-ports", first]) == 1
    assert f"ray ports: expected 0, or 1024 to 65125, got {first}" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:port", "127.0.0.1:1"])
def test_an_address_without_a_head(address: str, tmp_path: Path) -> None:
    process = ray_start.RayProcess("0" * 64, tmp_path)
    with pytest.raises(Exception, match=r"expected HOST or HOST:PORT|expected the head of a cluster"):
        process.join(address, "127.0.0.1", RayPorts(0), None, "a/1")


def test_a_machine_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(tmp_path))
    assert main(["stop"]) == 1
    assert "expected a cluster on this machine, got none" in capsys.readouterr().err
    record = MachineRecord("192.0.2.7:6379", "secret", 2**22, "http://192.0.2.7:8000")
    write_record(record)
    assert (tmp_path / f"cluster-{2**22}.json").stat().st_mode & 0o777 == 0o600
    assert read_record() == record
    assert main(["stop"]) == 1
    assert "expected process 4194304 of this machine's cluster, got none" in capsys.readouterr().err
    with pytest.raises(BadRequestError, match="got none"):
        read_record()
    (tmp_path / "cluster-1.json").write_text("[]")
    assert main(["stop"]) == 1
    assert "expected the record of a cluster" in capsys.readouterr().err
    remove_record(1)
    with pytest.raises(BadRequestError, match="got none"):
        read_record()


def test_one_machine_has_one_head_and_any_number_of_nodes(
    ray_is_there: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("opbox_service.cluster.machine.check_ray", lambda: None)
    program = [sys.executable, "-c", "import time; time.sleep(600)", "opbox"]
    head, node = subprocess.Popen(program), subprocess.Popen(program)
    try:
        write_record(MachineRecord("192.0.2.7:6379", "secret", head.pid, "http://192.0.2.7:8000"))
        write_record(MachineRecord("192.0.2.7:6379", "secret", node.pid))
        assert read_record().pid == head.pid
        assert main(["start", "--head"]) == 1
        assert f"expected no head of yours on this machine, got one at http://192.0.2.7:8000 (process {head.pid})" in (
            capsys.readouterr().err
        )
        remove_record(node.pid)
        assert read_record().pid == head.pid
        head.kill()
        head.wait()
        check_no_head()  # the record that it has left is nobody's
    finally:
        for process in (head, node):
            process.kill()
            process.wait()


def test_a_stop_does_not_wait_for_a_process_whose_parent_has_not_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    write_record(MachineRecord("192.0.2.7:6379", "secret", process.pid))
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == "stopped\n"
    assert process.wait() == -signal.SIGTERM


def test_a_tokens_file_is_made_from_the_settings(tmp_path: Path) -> None:
    path, fresh = tokens_file(Settings(), tmp_path)
    assert fresh.startswith("opbox_")
    assert fresh not in path.read_text()
    secret = "a-secret-of-the-head"
    path, fresh = tokens_file(Settings(token=secret), tmp_path)
    assert fresh == ""
    assert secret not in path.read_text()
    assert tokens_file(Settings(tokens_file=path), tmp_path / "other") == (path, "")


def test_shares_of_owners_with_quotas_begin_at_nothing(tmp_path: Path) -> None:
    text = '{"tokens": [], "owners": {"ann": {"sessions": 4, "weight": 2}, "bob": {"worker_seconds": 0}}}'
    quotas = quotas_of(text, tmp_path)
    assert quotas == {"ann": OwnerQuotas(2.0, {"sessions": 4.0}), "bob": OwnerQuotas(1.0, {})}
    shares = NodeShares(tmp_path / "shares.json", quotas)
    assert shares.of("ann").sessions == 0
    assert shares.of("bob").worker_seconds is None
    shares.update({"ann": {"sessions": 3.0}}, {"ann": 7})
    assert shares.of("ann").sessions == 3
    shares.update({"ann": {"sessions": 4.0}}, {"ann": 6})  # which was sent before, and comes late
    assert shares.of("ann").sessions == 3
    shares.update({"ann": {"sessions": 2.0}}, {"ann": 8})
    assert shares.of("ann").sessions == 2
    shares.clear()
    assert shares.of("ann").sessions == 0
    with pytest.raises(BadRequestError):
        quotas_of('{"tokens": 1}', tmp_path)


def test_owners_without_terms_begin_at_nothing_too(tmp_path: Path) -> None:
    usual = OwnerQuotas(limits=usual_quotas(Settings(max_sessions=8, max_owner_seconds=60)))
    assert usual.limits == {"sessions": 8.0, "worker_seconds": 60.0}
    text = '{"tokens": [], "owners": {"ann": {"sessions": 4}, "bob": {"worker_seconds": 0}}}'
    quotas = quotas_of(text, tmp_path, usual)
    assert quotas["ann"].limits == {"sessions": 4.0, "worker_seconds": 60.0}
    assert quotas["bob"].limits == {"sessions": 8.0}
    shares = NodeShares(tmp_path / "shares.json", quotas, usual)
    read = ShareFile(tmp_path / "shares.json")
    assert read.of("ann") == read.of("cid") == QuotaShare(sessions=0, worker_seconds=0)
    assert read.of("bob") == QuotaShare(sessions=0)
    shares.update({"cid": {"sessions": 1.0, "worker_seconds": 7.5}}, {"cid": 1})
    assert read.of("cid") == QuotaShare(sessions=1, worker_seconds=7.5)


def test_a_refused_owner_is_reported_for_some_seconds() -> None:
    refusals = Refusals()

    def since(now: float, **counts: int) -> tuple[str, ...]:
        rows = [{"owner": owner, "days": [{"refused": count}, {"refused": 9}]} for owner, count in counts.items()]
        return refusals.since([*rows, {"owner": "new", "days": []}], now)

    assert since(0.0, ann=0, bob=2) == ("bob",)
    assert since(1.0, ann=1, bob=2) == ("ann", "bob")
    assert since(5.5, ann=1, bob=0) == ("ann",)  # a new day
    assert since(7.0, ann=1, bob=1) == ("bob",)


def test_nodes_trust_the_gateway() -> None:
    variables = gateway_variables("192.0.2.7")
    assert json.loads(variables["OPBOX_TRUSTED_PROXIES"]) == ["127.0.0.1", "::1", "192.0.2.7"]
    assert json.loads(gateway_variables("127.0.0.1")["OPBOX_TRUSTED_PROXIES"]) == ["127.0.0.1", "::1"]
    settings = {"OPBOX_TRUSTED_PROXIES": '["192.0.2.7"]'}
    assert with_proxies({"OPBOX_TRUSTED_PROXIES": '["10.0.0.0/8"]'}, settings) == '["10.0.0.0/8", "192.0.2.7"]'


def test_a_report_of_a_servers_answers() -> None:
    devices = [{"device": "cpu", "worker": 7, "limit_bytes": 100, "used_bytes": 30}]
    devices += [{"device": "cpu", "worker": 0, "limit_bytes": 50, "used_bytes": 20}]
    sessions = [{"id": "a-1", "owner": "ann", "device": "cpu", "bytes": 30, "waiting": 2}]
    states = {"1": "READY", "2": "LOADING", "3": "UNAVAILABLE"}
    models = [{"name": "m", "version": number, "state": state, "in_flight": 2} for number, state in states.items()]
    models += [{"name": "unloaded", "version": "1", "state": "UNAVAILABLE", "in_flight": 0}]
    present = {"sessions": 1, "memory_bytes": 30, "worker_seconds": 0.5}
    report = report_of(
        {"devices": devices}, {"sessions": sessions}, {"models": models}, {"owners": [{"owner": "ann", "now": present}]}
    )
    assert report.free == {"cpu": 50}
    assert report.queue == 2
    assert report.models == {"m": ReplicaReport(("1",), 4)}
    assert report.used == {"ann": present}


def test_the_autoscaler_is_asked_once_and_idle_nodes_go_back() -> None:
    scaling = Scaling(600)
    assert scaling.bundles({}) is None
    assert scaling.bundles({"gpu": 2}) == [{"GPU": 1.0}, {"GPU": 1.0}]
    assert scaling.bundles({"gpu": 2}) is None
    assert not scaling.gives_back("n", 700, {"gpu": 2})
    assert scaling.bundles({}) == []
    assert not scaling.gives_back("n", 600, {})
    assert scaling.gives_back("n", 601, {})
    assert not scaling.takes("n", {})
    assert scaling.takes("n", {"gpu": 1})
    assert scaling.takes("n", {})


def test_a_server_gets_nothing_of_rays() -> None:
    own = {"RAY_AUTH_TOKEN": "secret", "RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PATH": "/bin"}
    assert server_environment(own, {"OPBOX_PORT": "1", "OPBOX_TOKENS": ""}) == {"PATH": "/bin", "OPBOX_PORT": "1"}
