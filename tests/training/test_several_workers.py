"""Trainings by several workers: equal weights by hash, one request a step, a worker's death, and going on after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import opbox as mx
from opbox import connection, dist
from opbox.cli.dist import dist as dist_command
from tests.contract.live import TOKENS, Live
from tests.training import workers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of one process and one thread, on which workers must not wait for each other's turn."""
    live = Live("none", tmp_path_factory.mktemp("workers"), OPBOX_THREADS="1", OPBOX_GROUP_HOST="127.0.0.1/8")
    yield live
    assert live.stop() == 0


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_TOKEN", TOKENS["ann"])
    monkeypatch.delenv("OPBOX_URL", raising=False)


def alone(optimizer: str, epochs: int) -> dict[str, Any]:
    """The same training in one process: batches of both workers, on two devices of one session."""
    data, labels = workers.samples()
    order = np.concatenate(
        [np.arange(rank, len(data), 2)[start : start + workers.BATCH] for start in range(0, 24, 8) for rank in (0, 1)]
    )
    batches = mx.io.NDArrayIter(data[order], labels[order], 2 * workers.BATCH)
    mod = mx.mod.Module(workers.network(), context=[mx.cpu(0), mx.cpu(1)])
    hashes: list[tuple[str, str]] = []

    def after_epoch(*args: Any) -> None:
        lists = zip(*mod._exec_group.param_arrays, strict=True)
        first, second = (dict(zip(mod._exec_group.param_names, arrays, strict=True)) for arrays in lists)
        hashes.append((workers.digest(first), workers.digest(second)))

    mod.fit(
        batches,
        num_epoch=epochs,
        kvstore="device",
        optimizer=optimizer,
        optimizer_params={"learning_rate": 0.1},
        arg_params=workers.weights(),
        aux_params={},
        epoch_end_callback=after_epoch,
    )
    return {"hashes": hashes, "weights": {name: value.asnumpy() for name, value in mod.get_params()[0].items()}}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_workers_have_equal_weights_in_one_request_a_step(server: Live, token: None, optimizer: str) -> None:
    rows = dist.launch(workers.train, (optimizer, 3), workers=2, urls=[server.url])
    assert rows[0]["hashes"] == rows[1]["hashes"]
    assert len(set(rows[0]["hashes"])) == 3
    for row in rows:
        assert row["rescale"] == 1 / (2 * workers.BATCH)
        epochs = [row["requests"][start : start + 3] for start in (0, 3, 6)]
        assert all(set(np.diff(epoch)) == {1} for epoch in epochs), row["requests"]
    connection.use(None)
    reference = alone(optimizer, 3)
    for first, second in reference["hashes"]:  # two devices of one session
        assert first == second
    for name, values in reference["weights"].items():
        np.testing.assert_allclose(rows[0]["weights"][name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_sum_that_overlaps_with_backward_has_the_same_bits(token: None) -> None:
    (overlapped, behind) = (dist.launch(workers.train_large, (least,), workers=2) for least in (1, 1 << 40))
    assert [count for _, count in (*overlapped, *behind)] == [4, 4, 0, 0]
    assert len({weights for weights, _ in (*overlapped, *behind)}) == 1


def test_a_store_by_itself_is_mxnets(token: None) -> None:
    rows = dist.launch(workers.store, workers=2)  # each with an engine in its own process
    # The first worker's value; 1 + 1 + 2 + 1; 1 + 2; what was pushed stays; 3 - (1 + 1).
    assert rows == [["dist_device_sync", 2, [3, 3], [5, 5], [3, 3], [1, 1], [1, 1]]] * 2


def test_all_go_on_from_the_checkpoint_after_a_death(server: Live, token: None, tmp_path: Path) -> None:
    rows = dist.launch(workers.lose_one, (str(tmp_path),), workers=2, urls=[server.url], restarts=1, min_workers=1)
    assert rows == [[0, 1, 1, 2]]  # the worker that was there, in the second attempt, from the second epoch
    assert len(list(tmp_path.glob("run-*.params"))) == 4
    assert server.json("GET", "/v1/sessions").header["sessions"] == []  # that of the dead one too


def test_a_failure_names_its_rank_and_ends_all(server: Live, token: None) -> None:
    with pytest.raises(mx.MXNetError, match=r"^rank \d of 3 has ended: (ValueError: no such file|PeerLost.*rank 1 )"):
        dist.launch(workers.fail_on_one, workers=3, urls=[server.url])


def test_the_command_runs_a_program_by_each_worker(tmp_path: Path, token: None) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, opbox as mx\nkv = mx.kv.create('dist_sync')\nkv.barrier()\nprint(kv.rank, sys.argv[1:])\n"
    )
    result = CliRunner().invoke(dist_command, ["run", "--workers", "2", str(program), "--lr", "0.1"])
    assert sorted(result.output.splitlines()) == ["[0] 0 ['--lr', '0.1']", "[1] 1 ['--lr', '0.1']"], result.output
    program.write_text("raise SystemExit(3)\n")
    failed = CliRunner().invoke(dist_command, ["run", "--workers", "2", str(program)])
    assert re.fullmatch(r"rank [01] of 2 has ended: exit status 3", str(failed.exception))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no.py"], "expected a Python file, got 'no.py'"),
        (["run", "--workers", "0", "x"], "0 is not in the range"),
        (["run", "--workers", "2", "--min-workers", "3", "x"], "expected at most 2, got 3"),
        (["run"], "Missing argument"),
    ],
)
def test_wrong_commands_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(dist_command, arguments)
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)


def test_wrong_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="launch: fn: expected a function, got 'train'"):
        dist.launch("train")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers: expected a number from 1 to 256, got 0"):
        dist.launch(workers.store, workers=0)
    with pytest.raises(ValueError, match="min_workers: expected a number from 1 to 2, got 3"):
        dist.launch(workers.store, workers=2, min_workers=3)
    with pytest.raises(mx.MXNetError, match=r"^no-such-program: expected a program"):
        dist.run_program(["no-such-program"])
    monkeypatch.setenv("OPBOX_DIST", "x")
    with pytest.raises(mx.MXNetError, match=r"OPBOX_DIST: expected what mx\.dist\.launch or"):
        dist.group()
